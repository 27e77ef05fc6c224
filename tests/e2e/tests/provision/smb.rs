//! Volumes of an SMB server: directories that the image `smb` creates with smbclient, so that its node need not mount
//! anything. Mounting them needs a kernel with SMB: see `vm_smb.rs`.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use mooring_harness::provisioner::{CONFIG_NAMESPACE, options_of};
use mooring_harness::smb::PASSWORD;
use mooring_harness::{Scope, in_namespace};
use serde_json::json;

fn on_server(scope: &Scope, script: &str) -> Result<String> {
    scope.exec("samba", ["sh", "-euc", script])
}

#[test]
fn an_smb_claim_is_a_directory_of_the_share_and_gone_with_all_that_is_in_it() {
    in_namespace("provision-smb", async |scope| {
        let (server, provisioner) = scope.smb_example().await?;
        let provisioner = provisioner.key("source", format!("//{}/volumes/a b; rm x", server.address));
        let directory = "/srv/volumes/a b; rm x";
        on_server(&scope, &format!("mkdir '{directory}'; chmod 0777 '{directory}'"))?;
        provisioner.apply().await?;
        let uid = scope.claim("data", &provisioner.class, "1Mi").await?;
        scope.claim_bound("data").await?;
        let name = format!("pvc-{uid}");
        let list = format!("ls '{directory}'");
        assert_eq!(on_server(&scope, &list)?, format!("{name}\n"));

        let volume = scope.provisioned(&uid).await?.context("no volume")?;
        let options = options_of(&volume)?;
        assert_eq!(options["client"], "smb");
        assert!(
            options["source"].ends_with(&format!("/volumes/a b; rm x/{name}")),
            "{options:?}"
        );
        let csi = volume.spec.context("no spec")?.csi.context("no CSI volume")?;
        let secret = csi.node_publish_secret_ref.context("no Secret")?;
        assert_eq!(secret.name, Some(format!("{}-login", scope.namespace)));
        let all = format!("{options:?}");
        assert!(!all.contains("not-to-be-seen"), "{all}");

        on_server(
            &scope,
            &format!("cd '{directory}/{name}'; mkdir -p deep/er; echo x >deep/er/file; chmod -R 0777 ."),
        )?;
        on_server(&scope, &format!("mkdir '{directory}/another'"))?;
        scope.claim_gone("data").await?;
        scope.nothing_left(&uid).await?;
        assert_eq!(on_server(&scope, &list)?, "another\n");
        Ok(())
    });
}

#[test]
fn a_claim_that_the_smb_server_has_no_room_directory_or_login_for_says_so() {
    in_namespace("provision-smb-no", async |scope| {
        let (server, provisioner) = scope.smb_example().await?;
        provisioner.apply().await?;
        scope.claim("large", &provisioner.class, "1000Ti").await?;
        scope.event("large", "the share has room for").await?;
        scope.claim_gone("large").await?;

        let nowhere = provisioner
            .clone()
            .key("source", format!("//{}/volumes/nowhere", server.address));
        nowhere.apply().await?;
        scope.claim("nowhere", &nowhere.class, "1Mi").await?;
        scope.event("nowhere", "has no directory /nowhere").await?;
        // There may be something of it in a directory that is only away: its deletion waits for that, too.
        scope.delete("persistentvolumeclaim/nowhere")?;
        provisioner.apply().await?;
        scope.claim_gone("nowhere").await?;

        let wrong =
            json!({"metadata": {"name": server.secret}, "stringData": {"smb-password": "not-to-be-seen-and-wrong"}});
        let secrets: Api<Secret> = Api::namespaced(scope.client.clone(), CONFIG_NAMESPACE);
        secrets
            .patch(&server.secret, &PatchParams::default(), &Patch::Merge(&wrong))
            .await?;
        scope.claim("refused", &provisioner.class, "1Mi").await?;
        let event = scope.event("refused", "does not take the user and password").await?;
        let message = event.message.unwrap_or_default();
        assert!(!message.contains("not-to-be-seen"), "{message}");
        let right = json!({"stringData": {"smb-password": PASSWORD}});
        secrets
            .patch(&server.secret, &PatchParams::default(), &Patch::Merge(&right))
            .await?;
        scope.claim_gone("refused").await?;
        Ok(())
    });
}
