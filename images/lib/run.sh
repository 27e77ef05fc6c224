# shellcheck shell=sh
# Each provisioning script reads this first: how a run ends that has not done what it was asked to do. What it prints
# last is shown to the user, so it says what to do about it. The exit codes are those of docs/vendors.md.
set -eu
# A worker: Mooring gives it runs (ConfigMap key "workers").
[ "${OPERATION-}" != serve ] || exec pv serve "$0" "$@"
# What a run writes contains keys.
umask 077

# Mooring tries again: also for a thing that is not on the storage, but could be there again.
fail() {
    echo "$@"
    exit 75
}

# There is no use in trying again until the ConfigMap, the class or the claim changes.
refuse() {
    echo "$@"
    exit 78
}
