//! A cluster, and how single runs of an image are begun and ended there, with claims that nobody else serves.

use std::collections::BTreeMap;
use std::time::Duration;

use flex_provisioner::config::ProvisionerConfig;
use flex_provisioner::operation::describe::{SubjectKind, describe};
use flex_provisioner::operation::observed::Surroundings;
use flex_provisioner::operation::{discover, request};
use flex_provisioner::process::call::{Answer as _, is_not_found};
use flex_provisioner::process::client::{self, ClientError};
use flex_provisioner::run::begin::{Made, Prepared};
use flex_provisioner::run::input_state::InputState;
use flex_provisioner::run::order::Order;
use flex_provisioner::run::outcome::{Finish, State};
use flex_provisioner::run::workers::Workers;
use flex_provisioner::run::{Run, RunId, end};
use flex_provisioner::volume::capacity;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams};
use kube::{Client, Config, ResourceExt};
use mooring_contract::request::{Request, Source, gib_rounded_up};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::args::ConformArgs;
use super::error::RigError;
use super::node;
use super::runs::{Ask, Setup};
use crate::ANSWER;

/// How often a run is looked at.
pub(super) const PERIOD: Duration = Duration::from_millis(200);

/// How much longer than its `timeout` a run may take until it is seen to have ended: it has to be scheduled, and its
/// image to be pulled.
pub(super) const SLACK: Duration = Duration::from_mins(3);

/// Settings by which the image does not reach its storage.
#[derive(Debug)]
pub(super) struct Unreachable {
    /// The provisioner with them.
    pub(super) config: ProvisionerConfig,
    /// The usual value of each, and the one in its place.
    pub(super) values: Vec<(String, String)>,
}

impl Unreachable {
    /// A volume's options as this provisioner would have printed them: an image may use them rather than its ConfigMap.
    fn options_of(&self, volume: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let changed = |value: &String| {
            self.values
                .iter()
                .fold(value.clone(), |value, (usual, other)| value.replace(usual, other))
        };
        volume
            .iter()
            .map(|(name, value)| (name.clone(), changed(value)))
            .collect()
    }
}

/// A cluster, and what to try there.
pub(super) struct Rig {
    pub(super) user: Client,
    pub(super) controller: Client,
    pub(super) setup: Setup,
    pub(super) unreachable: Option<Unreachable>,
    pub(super) namespace: String,
    kube_api: String,
    pub(super) claims: Mutex<Vec<String>>,
}

impl Rig {
    pub(super) async fn new(
        args: &ConformArgs,
        config: ProvisionerConfig,
        unreachable: Option<Unreachable>,
    ) -> Result<Self, RigError> {
        let size = capacity::parse(&args.size).map_err(|error| RigError::Size(args.size.clone(), error))?;
        let cluster = client::config(args.kubeconfig.as_deref(), ANSWER).await?;
        let mut as_controller = cluster.clone();
        as_controller.auth_info.impersonate = Some(args.controller.clone());
        let connect = |config: Config| Client::try_from(config).map_err(ClientError::Build);
        let user = connect(cluster.clone())?;
        let node = if config.is_node_local() {
            Some(node::wait_for(&user, &config, SLACK).await?)
        } else {
            None
        };
        Ok(Self {
            user,
            controller: connect(as_controller)?,
            setup: Setup {
                config,
                node,
                attributes: args.attribute.iter().cloned().collect(),
                size,
            },
            unreachable,
            namespace: args.namespace.clone(),
            kube_api: client::address(&cluster),
            claims: Mutex::default(),
        })
    }

    /// Removes the claims.
    pub(super) async fn clean(&self) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.user.clone(), &self.namespace);
        for name in self.claims.lock().await.drain(..) {
            if let Err(error) = claims.delete(&name, &DeleteParams::background()).await
                && !is_not_found(&error)
            {
                tracing::warn!(claim = name, %error, "the claim stays");
            }
        }
    }

    fn config_for(&self, ask: &Ask<'_>) -> &ProvisionerConfig {
        match &self.unreachable {
            Some(unreachable) if ask.unreachable => &unreachable.config,
            _ => &self.setup.config,
        }
    }

    pub(super) fn request(&self, ask: &Ask<'_>) -> Result<Request, RigError> {
        let around = Surroundings {
            class: None,
            config: self.config_for(ask),
            kube_api: &self.kube_api,
        };
        let volume = match &self.unreachable {
            Some(unreachable) if ask.unreachable => unreachable.options_of(&ask.volume),
            _ => ask.volume.clone(),
        };
        if describe(ask.operation).subject == SubjectKind::Config {
            return Ok(discover::request(self.config_for(ask), &self.kube_api));
        }
        if let Some(members) = ask.snapshot.as_ref().and_then(|snapshot| snapshot.members.as_ref()) {
            let group = Request {
                pvc_namespace: self.namespace.clone(),
                snapshot: ask.snapshot.clone(),
                ..request::unremembered(ask.operation, around)
            };
            return Ok(request::of_size(group, members.iter().map(|member| member.size).sum()));
        }
        let request = request::for_claim(ask.operation, ask.claim, self.setup.node.as_ref(), volume, around)?;
        let size = ask.size.unwrap_or(request.size);
        let mut parameters = request.parameters;
        parameters.extend(ask.parameters.clone());
        Ok(Request {
            parameters,
            size,
            size_gi: gib_rounded_up(size),
            source: ask.source.map(|source| Source {
                pv_name: source.request.pv_name.clone(),
                pvc_name: source.request.pvc_name.clone(),
                pvc_namespace: source.request.pvc_namespace.clone(),
                pvc_uid: source.request.pvc_uid.clone(),
                size: source.request.size,
                volume: source.options.clone(),
            }),
            snapshot: ask.snapshot.clone(),
            attributes: ask.attributes.clone(),
            node_name: ask.node.as_ref().map_or(request.node_name, |node| node.name.clone()),
            attachment: ask.node.as_ref().map(|node| node.attachment.clone()),
            ..request
        })
    }

    /// The run that is asked for, in the name of a claim.
    pub(super) fn id(ask: &Ask<'_>) -> RunId {
        RunId::new(ask.operation, &ask.in_name_of().uid().unwrap_or_default())
    }

    pub(super) fn order<'a>(&'a self, id: &'a RunId, ask: &Ask<'_>, request: &'a Request) -> Order<'a> {
        Order {
            id,
            request,
            config: self.config_for(ask),
            attempt: 1,
            state: &InputState::Unknown,
            node: self.setup.node.as_ref().map(|node| node.name.as_str()),
            allowed: &[],
            owner: None,
            seals: describe(id.operation).seals(),
            backups_read_only: describe(request.operation).only_reads_backups(),
        }
    }

    /// Begins a run in a Pod of its own.
    pub(super) async fn begin(&self, id: &RunId, ask: &Ask<'_>) -> Result<Run, RigError> {
        let request = self.request(ask)?;
        let workers = Workers::default();
        let prepared = Prepared::new(&self.controller, &workers, self.order(id, ask, &request)).await?;
        match prepared.make().await? {
            Made::New(run) => {
                prepared.hand_over(&run, true).await?;
                Ok(run)
            }
            Made::Found(run) => Err(RigError::Occupied(run.place())),
            Made::Occupied => Err(RigError::Occupied(id.name())),
        }
    }

    /// Waits for what `wanted` makes of the run's state.
    pub(super) async fn until<T>(&self, id: &RunId, wanted: impl Fn(&State) -> Option<T>) -> Result<T, RigError> {
        let limit = self.setup.config.timeout + SLACK;
        let deadline = Instant::now() + limit;
        let namespace = &self.setup.config.reference.namespace;
        loop {
            let found = end::find(&self.controller, namespace, id).await?;
            let state = found.first().map(Run::state);
            if let Some(found) = state.as_ref().and_then(&wanted) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                let state = state.map_or_else(|| "it is gone".to_owned(), |state| format!("{state:?}"));
                return Err(RigError::NoEnd {
                    name: id.in_namespace(namespace),
                    limit,
                    state,
                });
            }
            sleep(PERIOD).await;
        }
    }

    pub(super) async fn finished(&self, id: &RunId) -> Result<Finish, RigError> {
        self.until(id, |state| match state {
            State::Finished(finish) => Some(finish.clone()),
            State::Waiting { .. } | State::Running | State::Leaving => None,
        })
        .await
    }

    /// Removes a run, and waits until it is gone.
    pub(super) async fn remove(&self, id: &RunId, run: &Run, grace: Option<u32>) -> Result<(), RigError> {
        let namespace = &self.setup.config.reference.namespace;
        match grace {
            None => {
                end::end(&self.controller, &run.to_remove()).await?;
            }
            Some(grace) => {
                let pods: Api<Pod> = Api::namespaced(self.controller.clone(), namespace);
                let params = DeleteParams {
                    grace_period_seconds: Some(grace),
                    ..DeleteParams::background()
                };
                let deleted = pods.delete(&id.name(), &params).await;
                deleted.or_failed_to("delete", "Pod", &id.name())?;
            }
        }
        let deadline = Instant::now() + SLACK;
        while !end::find(&self.controller, namespace, id).await?.is_empty() {
            if Instant::now() > deadline {
                return Err(RigError::NoEnd {
                    name: id.in_namespace(namespace),
                    limit: SLACK,
                    state: "it is being removed".to_owned(),
                });
            }
            sleep(PERIOD).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flex_provisioner::config::ProvisionerConfig;
    use flex_provisioner::config::trust::Trust;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::Unreachable;

    #[test]
    fn a_volume_s_options_name_the_server_that_does_not_answer_too() {
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": "acme", "namespace": "mooring"},
            "data": {"plugin-name": "mooring.dev/flex-provisioner", "image": "acme:1", "server": "192.0.2.1"},
        }))
        .unwrap();
        let unreachable = Unreachable {
            config: ProvisionerConfig::parse(&map, &Trust::offline(None, None)).unwrap(),
            values: vec![("files.example.com".into(), "192.0.2.1".into())],
        };
        let options = |source: &str| BTreeMap::from([("source".to_owned(), source.to_owned())]);
        assert_eq!(
            unreachable.options_of(&options("tom@files.example.com:/srv/v")),
            options("tom@192.0.2.1:/srv/v")
        );
        assert_eq!(
            unreachable.options_of(&options("elsewhere:/v")),
            options("elsewhere:/v")
        );
    }
}
