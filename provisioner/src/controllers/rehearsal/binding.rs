//! The binding of a claim to its new volume. kube-controller-manager does it, and may learn of the PersistentVolume
//! later than of the claim.

use super::{Offers, PV, Script, Theatre};

fn script(image_makes_pv: bool) -> Script {
    Script {
        image_makes_pv,
        ..Script::plain(Offers::Changes)
    }
}

/// Turns in which kube-controller-manager does nothing, until Mooring has nothing left to do.
async fn provision(theatre: &mut Theatre) {
    for _ in 0..12 {
        theatre.turn_of_controllers().await;
        theatre.kubelet();
        theatre.garbage_collector();
    }
}

/// `syncBoundClaim` of kube-controller-manager reports every claim as lost whose binding is complete, and whose
/// PersistentVolume it does not know yet.
#[tokio::test]
async fn no_claim_is_lost_while_kube_controller_manager_does_not_know_its_volume() {
    for image_makes_pv in [false, true] {
        let mut theatre = Theatre::open(script(image_makes_pv));
        provision(&mut theatre).await;
        {
            let state = theatre.api.lock();
            let claim = state.get("claims", "default/data").unwrap();
            assert!(
                claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_null(),
                "the claim has lost its PersistentVolume"
            );
            // With a volume's name and without that annotation, `syncVolume` would not look at the claim again.
            assert!(claim["spec"]["volumeName"].is_null());
            assert!(state.get("volumes", &format!("/{PV}")).is_some());
        }
        assert_eq!(theatre.attempts, 1, "it is provisioned again");
        theatre.play().await;
        theatre.check("bound at last");
    }
}

#[tokio::test]
async fn a_claim_whose_volume_the_watch_does_not_show_yet_is_not_provisioned_again() {
    for image_makes_pv in [false, true] {
        let mut theatre = Theatre::open(script(image_makes_pv));
        theatre.lagging.insert("volumes", vec![]);
        provision(&mut theatre).await;
        assert_eq!(theatre.attempts, 1, "it is provisioned again");
        theatre.lagging.clear();
        theatre.play().await;
        theatre.check("bound at last");
    }
}
