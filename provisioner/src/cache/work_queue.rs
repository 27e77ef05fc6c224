//! Who has to be looked at again.

use futures::Stream;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::reflector::ObjectRef;

/// A claim or a PV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The claim of this namespace and name.
    Claim(String, String),
    /// The PV of this name.
    Volume(String),
}

/// Where watches say who has to be looked at. Without a limit: what is sent is two strings, and the controllers merge
/// repetitions.
#[derive(Debug, Clone)]
pub struct Waker {
    claims: UnboundedSender<ObjectRef<PersistentVolumeClaim>>,
    volumes: UnboundedSender<ObjectRef<PersistentVolume>>,
}

/// What the controllers hear.
#[derive(Debug)]
pub struct Calls {
    claims: UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
    volumes: UnboundedReceiver<ObjectRef<PersistentVolume>>,
}

impl Calls {
    /// The claims to be looked at, and the PVs.
    pub fn split(
        self,
    ) -> (
        impl Stream<Item = ObjectRef<PersistentVolumeClaim>>,
        impl Stream<Item = ObjectRef<PersistentVolume>>,
    ) {
        (self.claims, self.volumes)
    }
}

impl Waker {
    /// A waker and what hears it.
    pub fn new() -> (Self, Calls) {
        let (claims, claim_calls) = unbounded();
        let (volumes, volume_calls) = unbounded();
        (
            Self { claims, volumes },
            Calls {
                claims: claim_calls,
                volumes: volume_calls,
            },
        )
    }

    /// Has a claim or a PV looked at. After the controllers have stopped nobody hears it.
    pub fn wake(&self, target: &Target) {
        match target {
            Target::Claim(namespace, name) => {
                let _ = self.claims.unbounded_send(ObjectRef::new(name).within(namespace));
            }
            Target::Volume(name) => {
                let _ = self.volumes.unbounded_send(ObjectRef::new(name));
            }
        }
    }
}
