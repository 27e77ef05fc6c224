//! What is tried of each operation. The contract (`docs/vendors.md`) has the rule behind each.

mod attachment;
mod discovery;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::{FutureExt, LocalBoxFuture};
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use mooring_contract::operation::Operation;
use mooring_contract::outcome::Outcome;
use mooring_contract::request::{Attributes, Request, Snapshot};

use super::error::CheckError;
use super::report::ConformReport;
use super::runs::{Ask, MadeVolume, Runs, kinds};
use crate::run::outcome::{Category, Finish};
use crate::volume::acceptance::{Expected, check};
use crate::volume::persistent_volume::{self, Printed};
use crate::volume::snapshot::Form;

/// More than any storage has, in bytes.
const TOO_MUCH: u64 = 1 << 62;

/// Name of the class of attributes; there is no object of that name.
const ATTRIBUTES_CLASS: &str = "mooring-conform";

/// An attribute that no image knows.
const NO_ATTRIBUTE: &str = "mooring-conform-none";

/// At which parts of its usual time a run is cut off.
const MOMENTS: [f64; 3] = [0.0, 0.3, 0.7];

fn fault(text: impl Into<String>) -> CheckError {
    CheckError::Image(text.into())
}

type Passed = Result<(), CheckError>;

/// How many things are tried at once, each with volumes of its own.
const AT_ONCE: usize = 4;

/// One thing to be tried.
struct Check<'k> {
    of: Operation,
    what: String,
    outcome: LocalBoxFuture<'k, Passed>,
}

impl<'k> Check<'k> {
    fn new(of: Operation, what: impl Into<String>, outcome: LocalBoxFuture<'k, Passed>) -> Self {
        Self {
            of,
            what: what.into(),
            outcome,
        }
    }

    async fn timed(self) -> (Operation, String, Passed, Duration) {
        let begin = Instant::now();
        let result = self.outcome.await;
        (self.of, self.what, result, begin.elapsed())
    }
}

/// An image to be tried.
pub(super) struct Kit<'r, R> {
    rig: &'r R,
    /// How long its first run took.
    usual: Duration,
}

impl<'r, R: Runs> Kit<'r, R> {
    /// Of the image that this carries out.
    pub(super) fn new(rig: &'r R) -> Self {
        Self {
            rig,
            usual: Duration::ZERO,
        }
    }

    /// Tries all that the ConfigMap promises.
    pub(super) async fn try_all(&mut self, report: &mut ConformReport) {
        let promised = self.rig.promised();
        let begin = Instant::now();
        let first = self.makes_a_volume().await;
        self.usual = begin.elapsed();
        let works = first.is_ok();
        report.tried(
            Operation::Provision,
            "makes a volume that Mooring takes",
            first,
            self.usual,
        );
        if !works {
            // Nothing else can be tried without a volume.
            return;
        }
        let mut checks = self.of_provision();
        for kind in kinds(&promised) {
            checks.extend(match kind {
                Operation::Provision => Vec::new(),
                Operation::Delete => self.of_delete(),
                Operation::Expand => self.of_expand(),
                Operation::Modify => self.of_modify(),
                Operation::Clone => self.of_clone(),
                Operation::Snapshot => self.of_taking(Form::Snapshot),
                Operation::DeleteSnapshot => self.of_deleting(Form::Snapshot),
                Operation::Backup => self.of_taking(Form::Backup),
                Operation::DeleteBackup => self.of_deleting(Form::Backup),
                Operation::Restore => self.of_restore(&promised),
                Operation::Discover => self.of_discover(),
                Operation::Attach => self.of_attach(),
                Operation::Detach => self.of_detach(),
            });
        }
        if self.rig.can_be_unreachable() {
            checks.extend(self.of_unreachable());
        }
        let mut running = stream::iter(checks).map(Check::timed).buffered(AT_ONCE);
        while let Some((of, what, result, took)) = running.next().await {
            report.tried(of, &what, result, took);
        }
        if promised.contains(&Operation::Modify) && self.rig.attributes().is_empty() {
            let why = "say with --attribute KEY=VALUE which attributes the image can give a volume";
            report.skipped(Operation::Modify, why);
        }
        for operation in promised
            .into_iter()
            .filter(|operation| Operation::of(*operation).is_none())
        {
            report.skipped(operation, "this version of the kit does not know the operation");
        }
        if !self.rig.can_be_unreachable() {
            let why = "say with --unreachable KEY=VALUE how the image can't reach its storage";
            report.skipped(Operation::Provision, why);
        }
    }

    fn of_provision(&self) -> Vec<Check<'_>> {
        let check = |what: &str, check| Check::new(Operation::Provision, what, check);
        let mut checks = vec![
            check(
                "gives the same volume when it is run again",
                self.provision_twice().boxed_local(),
            ),
            check(
                "gives one volume to two runs at once",
                self.provision_at_once().boxed_local(),
            ),
            check(
                "ends with a reason where it can't have the size",
                self.provision_too_much().boxed_local(),
            ),
        ];
        for (moment, share) in MOMENTS.into_iter().enumerate() {
            let what = format!("gives a volume after it was killed (moment {})", moment + 1);
            checks.push(check(&what, self.provision_cut_off(share).boxed_local()));
        }
        checks
    }

    fn of_delete(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Delete, what, check);
        vec![
            check(
                "succeeds again on what it has removed",
                self.delete_twice().boxed_local(),
            ),
            check("succeeds on what was never made", self.delete_nothing().boxed_local()),
            check("is done by two runs at once", self.delete_at_once().boxed_local()),
            check("is done after it was killed", self.delete_cut_off().boxed_local()),
            check(
                "leaves room for a volume of the same name",
                self.provision_after_delete().boxed_local(),
            ),
        ]
    }

    fn of_expand(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Expand, what, check);
        vec![
            check("succeeds again on what has the size", self.expand_twice().boxed_local()),
            check("is done by two runs at once", self.expand_at_once().boxed_local()),
            check("is done after it was killed", self.expand_cut_off().boxed_local()),
            check("fails on a volume that is gone", self.expand_nothing().boxed_local()),
        ]
    }

    fn of_modify(&self) -> Vec<Check<'_>> {
        if self.rig.attributes().is_empty() {
            return Vec::new();
        }
        let check = |what, check| Check::new(Operation::Modify, what, check);
        vec![
            check(
                "succeeds again on what has the attributes",
                self.modify_twice().boxed_local(),
            ),
            check("is done by two runs at once", self.modify_at_once().boxed_local()),
            check("is done after it was killed", self.modify_cut_off().boxed_local()),
            check("fails on a volume that is gone", self.modify_nothing().boxed_local()),
            check(
                "refuses an attribute that it does not know",
                self.modify_unknown().boxed_local(),
            ),
        ]
    }

    fn of_clone(&self) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(Operation::Clone, what, check);
        vec![
            check(
                "gives the same copy when it is run again",
                self.clone_twice().boxed_local(),
            ),
            check("gives a copy after it was killed", self.clone_cut_off().boxed_local()),
            check("fails on a source that is gone", self.clone_of_nothing().boxed_local()),
        ]
    }

    fn of_taking(&self, form: Form) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(form.take().into(), what, check);
        vec![
            check(
                "succeeds again on what it has taken",
                self.take_twice(form).boxed_local(),
            ),
            check("is done after it was killed", self.take_cut_off(form).boxed_local()),
            check(
                "fails on a volume that is gone",
                self.take_of_nothing(form).boxed_local(),
            ),
        ]
    }

    fn of_deleting(&self, form: Form) -> Vec<Check<'_>> {
        let check = |what, check| Check::new(form.delete().into(), what, check);
        vec![
            check(
                "succeeds again on what it has removed",
                self.delete_taken_twice(form).boxed_local(),
            ),
            check(
                "succeeds on what was never taken",
                self.delete_not_taken(form).boxed_local(),
            ),
        ]
    }

    /// Of each that the image takes.
    fn of_restore(&self, promised: &[Operation]) -> Vec<Check<'_>> {
        let backups = promised.contains(&Operation::Backup);
        let snapshots = promised.contains(&Operation::Snapshot) || !backups;
        let forms = [(Form::Snapshot, snapshots), (Form::Backup, backups)];
        let forms = forms.into_iter().filter(|(_, taken)| *taken);
        forms.flat_map(|(form, _)| self.of_restoring(form)).collect()
    }

    fn of_restoring(&self, form: Form) -> Vec<Check<'_>> {
        let noun = form.noun();
        let check = |what: String, check| Check::new(Operation::Restore, what, check);
        vec![
            check(
                format!("gives the same volume when it is run again on a {noun}"),
                self.restore_twice(form).boxed_local(),
            ),
            check(
                format!("gives a volume of a {noun} after it was killed"),
                self.restore_cut_off(form).boxed_local(),
            ),
            check(
                format!("outlives the volume that the {noun} is of"),
                self.restore_without_volume(form).boxed_local(),
            ),
            check(
                format!("fails on a {noun} that is gone"),
                self.restore_of_nothing(form).boxed_local(),
            ),
        ]
    }

    fn of_unreachable(&self) -> Vec<Check<'_>> {
        const AWAY: &str = "fails with a reason while its storage can't be reached";
        vec![
            Check::new(Operation::Provision, AWAY, self.provision_unreachable().boxed_local()),
            Check::new(Operation::Delete, AWAY, self.delete_unreachable().boxed_local()),
        ]
    }

    /// Reads the volume that a run has made; an error if the controller would not take it.
    fn volume(
        &self,
        claim: &PersistentVolumeClaim,
        request: Request,
        finish: &Finish,
    ) -> Result<MadeVolume, CheckError> {
        done(finish)?;
        let config = self.rig.config();
        let Some(source) = config.volume_source else {
            return Err(fault(
                "the ConfigMap has no volume-source, so the image has to make PersistentVolumes itself, which this kit \
                 can't try: have it print the volume's options, and set volume-source",
            ));
        };
        let printed = Printed::parse(&finish.message).map_err(|error| fault(error.to_string()))?;
        let volume = persistent_volume::build(&request, config, source, printed, self.rig.node());
        let expected = Expected {
            claim,
            pv_name: &request.pv_name,
            config_namespace: &config.reference.namespace,
            node: self.rig.node(),
            class_options: &[],
            client_image: config.client_image.as_deref(),
            attaches: config.operations.contains(&Operation::Attach),
        };
        let refusals: Vec<_> = check(&volume, &expected).iter().map(ToString::to_string).collect();
        if refusals.is_empty() {
            Ok(MadeVolume {
                claim: claim.clone(),
                options: persistent_volume::options(&volume),
                request,
            })
        } else {
            Err(fault(format!("the volume would be refused: {}", refusals.join("; "))))
        }
    }

    async fn made_by(&self, ask: &Ask<'_>) -> Result<MadeVolume, CheckError> {
        let request = self.rig.asked(ask)?;
        let finish = self.rig.run(ask).await?;
        self.volume(ask.claim, request, &finish)
    }

    /// A volume of a new claim.
    async fn new_volume(&self) -> Result<MadeVolume, CheckError> {
        let claim = self.rig.claim().await?;
        self.made_by(&Ask::of(Operation::Provision, &claim)).await
    }

    async fn must_be_done(&self, ask: &Ask<'_>) -> Passed {
        done(&self.rig.run(ask).await?)
    }

    async fn remove(&self, made: &MadeVolume) -> Passed {
        if !self.rig.promised().contains(&Operation::Delete) {
            return Ok(());
        }
        let gone = self.must_be_done(&Ask::on(Operation::Delete, made)).await;
        gone.map_err(|error| match error {
            CheckError::Image(text) => fault(format!("the volume could not be removed afterwards: {text}")),
            rig @ CheckError::Rig(_) => rig,
        })
    }

    async fn makes_a_volume(&self) -> Passed {
        let made = self.new_volume().await?;
        self.remove(&made).await
    }

    async fn provision_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        let again = self.made_by(&Ask::of(Operation::Provision, &made.claim)).await?;
        same(&made, &again)?;
        self.remove(&made).await
    }

    /// Both runs of an ask at once, the second to the name of a claim of its own.
    async fn both(&self, ask: &Ask<'_>) -> Result<(Finish, Finish), CheckError> {
        let other = self.rig.claim().await?;
        let beside = Ask {
            beside: Some(&other),
            ..ask.clone()
        };
        let (first, second) = futures::join!(self.rig.run(ask), self.rig.run(&beside));
        Ok((first?, second?))
    }

    async fn provision_at_once(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Provision, &claim);
        let (first, second) = self.both(&ask).await?;
        for finish in [&first, &second] {
            done_or_later(finish)?;
        }
        let made = self.made_by(&ask).await?;
        for finish in [&first, &second] {
            if finish.outcome == Outcome::Done {
                same(&made, &self.volume(&claim, made.request.clone(), finish)?)?;
            }
        }
        self.remove(&made).await
    }

    async fn provision_cut_off(&self, share: f64) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask::of(Operation::Provision, &claim);
        self.rig.cut_off(&ask, self.usual.mul_f64(share)).await?;
        let made = self.made_by(&ask).await?;
        self.remove(&made).await
    }

    async fn provision_too_much(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask {
            size: Some(TOO_MUCH),
            ..Ask::of(Operation::Provision, &claim)
        };
        let finish = self.rig.run(&ask).await?;
        if finish.outcome == Outcome::Done {
            // Storage without a limit, or one that promises more than it has.
            let made = self.volume(&claim, self.rig.asked(&ask)?, &finish)?;
            return self.remove(&made).await;
        }
        failed_with_reason(&finish)?;
        // What may be left of it goes, as the controller has it go.
        if self.rig.promised().contains(&Operation::Delete) {
            self.must_be_done(&Ask::of(Operation::Delete, &claim)).await
        } else {
            Ok(())
        }
    }

    async fn delete_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await
    }

    async fn delete_nothing(&self) -> Passed {
        let claim = self.rig.claim().await?;
        self.must_be_done(&Ask::of(Operation::Delete, &claim)).await
    }

    async fn delete_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Ask::on(Operation::Delete, &made);
        let (first, second) = self.both(&ask).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&ask).await
    }

    async fn delete_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Ask::on(Operation::Delete, &made);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await
    }

    async fn provision_after_delete(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let anew = self.made_by(&Ask::of(Operation::Provision, &made.claim)).await?;
        self.remove(&anew).await
    }

    fn larger(made: &MadeVolume) -> Ask<'_> {
        Ask {
            size: Some(made.request.size * 2),
            ..Ask::on(Operation::Expand, made)
        }
    }

    async fn expand_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.remove(&made).await
    }

    async fn expand_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let (first, second) = self.both(&Self::larger(&made)).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.remove(&made).await
    }

    async fn expand_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        self.rig.cut_off(&Self::larger(&made), Duration::ZERO).await?;
        self.must_be_done(&Self::larger(&made)).await?;
        self.remove(&made).await
    }

    async fn expand_nothing(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        must_fail(&self.rig.run(&Self::larger(&made)).await?, "the volume is gone")
    }

    fn modified<'a>(made: &'a MadeVolume, parameters: &BTreeMap<String, String>) -> Ask<'a> {
        Ask {
            attributes: Some(Attributes {
                class: ATTRIBUTES_CLASS.to_owned(),
                parameters: parameters.clone(),
            }),
            ..Ask::on(Operation::Modify, made)
        }
    }

    async fn modify_twice(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::modified(&made, self.rig.attributes());
        self.must_be_done(&ask).await?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn modify_at_once(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::modified(&made, self.rig.attributes());
        let (first, second) = self.both(&ask).await?;
        done_or_later(&first)?;
        done_or_later(&second)?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn modify_cut_off(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::modified(&made, self.rig.attributes());
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn modify_nothing(&self) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let ask = Self::modified(&made, self.rig.attributes());
        must_fail(&self.rig.run(&ask).await?, "the volume is gone")
    }

    async fn modify_unknown(&self) -> Passed {
        let made = self.new_volume().await?;
        let unknown = [(NO_ATTRIBUTE.to_owned(), "1".to_owned())].into();
        let ask = Self::modified(&made, &unknown);
        let verdict = must_fail(
            &self.rig.run(&ask).await?,
            "no image knows attribute mooring-conform-none",
        );
        self.remove(&made).await?;
        verdict
    }

    fn copy<'a>(claim: &'a PersistentVolumeClaim, source: &'a MadeVolume) -> Ask<'a> {
        Ask {
            source: Some(source),
            ..Ask::of(Operation::Clone, claim)
        }
    }

    async fn clone_twice(&self) -> Passed {
        let source = self.new_volume().await?;
        let claim = self.rig.claim().await?;
        let copy = self.made_by(&Self::copy(&claim, &source)).await?;
        same(&copy, &self.made_by(&Self::copy(&claim, &source)).await?)?;
        self.remove(&copy).await?;
        self.remove(&source).await
    }

    async fn clone_cut_off(&self) -> Passed {
        let source = self.new_volume().await?;
        let claim = self.rig.claim().await?;
        self.rig.cut_off(&Self::copy(&claim, &source), Duration::ZERO).await?;
        let copy = self.made_by(&Self::copy(&claim, &source)).await?;
        self.remove(&copy).await?;
        self.remove(&source).await
    }

    async fn clone_of_nothing(&self) -> Passed {
        let source = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &source)).await?;
        let claim = self.rig.claim().await?;
        let finish = self.rig.run(&Self::copy(&claim, &source)).await?;
        must_fail(&finish, "the volume to copy is gone")
    }

    /// The snapshot or backup of a volume that the contract has one name for.
    fn taken_of(form: Form, made: &MadeVolume) -> Snapshot {
        let uid = made.claim.uid().unwrap_or_default();
        Snapshot {
            name: format!("{}-{uid}", form.noun()),
            content_name: format!("snapcontent-{uid}"),
            content_uid: uid,
            backup: form == Form::Backup,
        }
    }

    fn take(form: Form, made: &MadeVolume) -> Ask<'_> {
        Ask {
            snapshot: Some(Self::taken_of(form, made)),
            ..Ask::on(form.take(), made)
        }
    }

    fn delete_taken(form: Form, made: &MadeVolume) -> Ask<'_> {
        Ask {
            snapshot: Some(Self::taken_of(form, made)),
            ..Ask::on(form.delete(), made)
        }
    }

    fn restore<'m>(form: Form, claim: &'m PersistentVolumeClaim, source: &'m MadeVolume) -> Ask<'m> {
        Ask {
            source: Some(source),
            snapshot: Some(Self::taken_of(form, source)),
            ..Ask::of(Operation::Restore, claim)
        }
    }

    async fn new_taken(&self, form: Form) -> Result<MadeVolume, CheckError> {
        let made = self.new_volume().await?;
        self.must_be_done(&Self::take(form, &made)).await?;
        Ok(made)
    }

    async fn remove_taken(&self, form: Form, made: &MadeVolume) -> Passed {
        if !self.rig.promised().contains(&form.delete().into()) {
            return Ok(());
        }
        self.must_be_done(&Self::delete_taken(form, made)).await
    }

    async fn take_twice(&self, form: Form) -> Passed {
        let made = self.new_taken(form).await?;
        self.must_be_done(&Self::take(form, &made)).await?;
        self.remove_taken(form, &made).await?;
        self.remove(&made).await
    }

    async fn take_cut_off(&self, form: Form) -> Passed {
        let made = self.new_volume().await?;
        let ask = Self::take(form, &made);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        self.must_be_done(&ask).await?;
        self.remove_taken(form, &made).await?;
        self.remove(&made).await
    }

    async fn take_of_nothing(&self, form: Form) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Ask::on(Operation::Delete, &made)).await?;
        let finish = self.rig.run(&Self::take(form, &made)).await?;
        must_fail(&finish, "the volume is gone")
    }

    async fn delete_taken_twice(&self, form: Form) -> Passed {
        let made = self.new_taken(form).await?;
        let ask = Self::delete_taken(form, &made);
        self.must_be_done(&ask).await?;
        self.must_be_done(&ask).await?;
        self.remove(&made).await
    }

    async fn delete_not_taken(&self, form: Form) -> Passed {
        let made = self.new_volume().await?;
        self.must_be_done(&Self::delete_taken(form, &made)).await?;
        self.remove(&made).await
    }

    async fn restore_twice(&self, form: Form) -> Passed {
        let source = self.new_taken(form).await?;
        let claim = self.rig.claim().await?;
        let ask = Self::restore(form, &claim, &source);
        let restored = self.made_by(&ask).await?;
        same(&restored, &self.made_by(&ask).await?)?;
        self.remove(&restored).await?;
        self.remove_taken(form, &source).await?;
        self.remove(&source).await
    }

    async fn restore_cut_off(&self, form: Form) -> Passed {
        let source = self.new_taken(form).await?;
        let claim = self.rig.claim().await?;
        let ask = Self::restore(form, &claim, &source);
        self.rig.cut_off(&ask, Duration::ZERO).await?;
        let restored = self.made_by(&ask).await?;
        self.remove(&restored).await?;
        self.remove_taken(form, &source).await?;
        self.remove(&source).await
    }

    async fn restore_without_volume(&self, form: Form) -> Passed {
        let source = self.new_taken(form).await?;
        self.must_be_done(&Ask::on(Operation::Delete, &source)).await?;
        let claim = self.rig.claim().await?;
        let restored = self.made_by(&Self::restore(form, &claim, &source)).await?;
        self.remove_taken(form, &source).await?;
        self.remove(&restored).await
    }

    async fn restore_of_nothing(&self, form: Form) -> Passed {
        let source = self.new_volume().await?;
        let claim = self.rig.claim().await?;
        let finish = self.rig.run(&Self::restore(form, &claim, &source)).await?;
        must_fail(&finish, &format!("the {} is gone", form.noun()))?;
        self.remove(&source).await
    }

    async fn provision_unreachable(&self) -> Passed {
        let claim = self.rig.claim().await?;
        let ask = Ask {
            unreachable: true,
            ..Ask::of(Operation::Provision, &claim)
        };
        must_fail(&self.rig.run(&ask).await?, "its storage can't be reached")
    }

    async fn delete_unreachable(&self) -> Passed {
        let made = self.new_volume().await?;
        let ask = Ask {
            unreachable: true,
            ..Ask::on(Operation::Delete, &made)
        };
        let verdict = must_fail(&self.rig.run(&ask).await?, "its storage can't be reached");
        self.remove(&made).await?;
        verdict
    }
}

/// Whether a run is done.
fn done(finish: &Finish) -> Passed {
    match finish.outcome {
        Outcome::Done => Ok(()),
        Outcome::Retry | Outcome::GiveUp => Err(fault(format!("the run failed: {}", words(finish)))),
    }
}

/// Whether a run is done, or asks to be run again: one of two at once may find the other in its way.
fn done_or_later(finish: &Finish) -> Passed {
    match finish.outcome {
        Outcome::Done => Ok(()),
        Outcome::Retry => failed_with_reason(finish),
        Outcome::GiveUp => Err(fault(format!(
            "one of two runs at once gave up for good (exit 78), though it is only to be run again: {}",
            words(finish)
        ))),
    }
}

/// Whether a run failed, by itself, where it could not do what it was asked.
fn must_fail(finish: &Finish, since: &str) -> Passed {
    match finish.outcome {
        Outcome::Done => Err(fault(format!("the run says that it is done, though {since}"))),
        Outcome::Retry | Outcome::GiveUp => failed_with_reason(finish),
    }
}

/// Whether a run that failed ended by itself and said why.
fn failed_with_reason(finish: &Finish) -> Passed {
    match finish.category {
        Category::Timeout => Err(fault(
            "the run did not end until its timeout: have the image give up by itself, and say why",
        )),
        Category::Done
        | Category::Temporary
        | Category::Config
        | Category::Failed
        | Category::OutOfMemory
        | Category::Node
        | Category::NotStarted
        | Category::Refused
        | Category::Api => match finish.message.trim() {
            "" => Err(fault(
                "the run failed and said nothing: write why to standard error or /dev/termination-log",
            )),
            _ => Ok(()),
        },
    }
}

fn words(finish: &Finish) -> &str {
    match finish.words.trim() {
        "" => "it said nothing",
        words => words,
    }
}

/// Whether two runs gave the same volume.
fn same(first: &MadeVolume, second: &MadeVolume) -> Passed {
    if first.options == second.options {
        return Ok(());
    }
    Err(fault(format!(
        "two runs for claim {} gave two volumes, {:?} and {:?}: name a volume after pv-name, and look for it first",
        first.claim.name_any(),
        first.options,
        second.options
    )))
}

#[cfg(test)]
mod tests;
