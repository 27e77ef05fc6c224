//! Drops the capabilities that mounting does not need, for good.

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

/// What is kept, each with its reason.
const KEPT: &[Capability] = &[
    // Mount, unmount, enter the host's namespaces, set up loop devices.
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_CHROOT,
    // Find the kubelet's namespaces.
    Capability::CAP_SYS_PTRACE,
    // Resize a mounted ext4.
    Capability::CAP_SYS_RESOURCE,
    // Reach volume directories, agents' sockets and image files of any owner.
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_CHOWN,
    Capability::CAP_FOWNER,
    // Have new files in a directory belong to a Pod's group, whose member no worker is.
    Capability::CAP_FSETID,
    // The host's mount.nfs talks from a reserved port.
    Capability::CAP_NET_BIND_SERVICE,
];

/// Gives up all other capabilities of this process and of those that it will start. Called before there are threads.
pub fn give_up() -> Result<(), CapsError> {
    let kept: CapsHashSet = KEPT.iter().copied().collect();
    // Out of the bounding set, or a program run by root would get them back.
    for capability in caps::read(None, CapSet::Bounding)?.difference(&kept) {
        caps::drop(None, CapSet::Bounding, *capability)?;
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let left: CapsHashSet = caps::read(None, CapSet::Permitted)?
        .intersection(&kept)
        .copied()
        .collect();
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)
}
