#!/bin/sh
# Uninstalls Mooring, however it was installed: sh configmaps/uninstall.sh [NAMESPACE]
#
# While a volume, a claim or a snapshot of Mooring's is left, it names them, changes nothing and fails. It runs nothing
# but kubectl, with your own rights, and can be run again after it was cut off. docs/install.md has what stays.
set -eu
namespace=${1:-mooring}
kubectl=${KUBECTL:-kubectl}
part_of_mooring=app.kubernetes.io/part-of=mooring
made_by_mooring=app.kubernetes.io/managed-by=mooring
# On the controller's Deployment while this runs: how many replicas it had.
noted_replicas=mooring.dev/replicas-before-uninstall

in_namespace() {
    "$kubectl" -n "$namespace" "$@"
}

# The objects of a kind that have a name of Mooring's in one of these fields.
of_mooring() {
    kind=$1 fields=$2
    shift 2
    rows=$("$kubectl" get "$kind" --all-namespaces --no-headers "$@" \
        -o custom-columns="KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name,$fields") || exit 1
    printf '%s\n' "$rows" | grep -F mooring.dev || true
}

# Snapshots are an API of their own, which the cluster may lack.
snapshot_kinds() {
    for kind in "$@"; do
        "$kubectl" get customresourcedefinition "$kind" --ignore-not-found -o name || exit 1
    done
}

refuse_if_used() {
    contents=$(snapshot_kinds volumesnapshotcontents.snapshot.storage.k8s.io \
        volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io)
    left=$(
        of_mooring persistentvolumes "CLAIM_NAMESPACE:.spec.claimRef.namespace,CLAIM:.spec.claimRef.name,\
CSI:.spec.csi.driver,FLEX:.spec.flexVolume.driver,FINALIZERS:.metadata.finalizers"
        of_mooring persistentvolumeclaims FINALIZERS:.metadata.finalizers
        of_mooring pods "CSI:.spec.volumes[*].csi.driver,FLEX:.spec.volumes[*].flexVolume.driver" \
            -l '!mooring.dev/component'
        for kind in $contents; do
            of_mooring "${kind##*/}" DRIVER:.spec.driver
        done
    )
    if [ -n "$left" ]; then
        cat >&2 <<END
$left

Mooring stays: these objects use it (kind, namespace, name and, of a PersistentVolume, its claim's namespace and name).
Delete their Pods, then the claims and the snapshots, and wait until the PersistentVolumes are gone. A volume with
reclaim policy Retain goes when you delete its PersistentVolume; its data stays on the storage.
END
        exit 1
    fi
}

of_controller() {
    in_namespace get deployment flex-provisioner --ignore-not-found -o "jsonpath={$1}"
}

start_controller_again() {
    in_namespace scale deployment flex-provisioner --replicas="$replicas"
    in_namespace annotate deployment flex-provisioner "$noted_replicas-"
}

# What follows deletes the rights and policies of all namespaces.
installed=$("$kubectl" get clusterrolebinding mooring-mounter --ignore-not-found \
    -o 'jsonpath={.subjects[0].namespace}')
if [ -n "$installed" ] && [ "$installed" != "$namespace" ]; then
    echo "Mooring stays: it is installed in namespace $installed, so run this again: sh uninstall.sh $installed" >&2
    exit 1
fi

replicas=$(of_controller .spec.replicas)
if [ "$replicas" = 0 ]; then
    # A run was cut off.
    noted=$(of_controller ".metadata.annotations.$(echo "$noted_replicas" | sed 's/[.]/\\./g')")
    replicas=${noted:-0}
    [ -z "$noted" ] || trap start_controller_again EXIT
fi
refuse_if_used
# A claim may have come since. While the controller is away, nothing makes a volume.
release=$(of_controller '.metadata.annotations.meta\.helm\.sh/release-name')
if [ -n "$replicas" ]; then
    trap start_controller_again EXIT
    in_namespace annotate deployment flex-provisioner --overwrite "$noted_replicas=$replicas"
    in_namespace scale deployment flex-provisioner --replicas=0
    in_namespace wait --for=delete pods -l app.kubernetes.io/name=flex-provisioner --timeout=2m
    refuse_if_used
fi

# Says which Pods did not end.
fail_with_pods() {
    "$kubectl" get pods "$@" -o wide >&2
    echo "These Pods did not end. Bring their nodes back, or delete the Nodes, and run this again." >&2
    exit 1
}

# Workers have volumes mounted, so they go before the mounters. These go before their rights: each removes its files and
# labels from its node.
"$kubectl" delete pods --all-namespaces -l mooring.dev/component=provisioning --timeout=2m ||
    fail_with_pods --all-namespaces -l mooring.dev/component=provisioning
trap - EXIT
in_namespace delete daemonset mounter --cascade=foreground --ignore-not-found --timeout=3m ||
    fail_with_pods -n "$namespace" -l app.kubernetes.io/name=mounter

"$kubectl" delete storageclasses -l "$made_by_mooring"
in_namespace delete csistoragecapacities -l "$made_by_mooring"
for kind in $(snapshot_kinds volumesnapshotclasses.snapshot.storage.k8s.io); do
    "$kubectl" delete "${kind##*/}" -l "$made_by_mooring"
done
policies=validatingadmissionpolicybindings,validatingadmissionpolicies
case $("$kubectl" get --raw /apis/admissionregistration.k8s.io/v1) in
*mutatingadmissionpolicies*) policies=$policies,mutatingadmissionpolicybindings,mutatingadmissionpolicies ;;
esac
"$kubectl" delete "$policies,csidrivers,priorityclasses,clusterrolebindings,clusterroles" -l "$part_of_mooring"
in_namespace delete -l "$part_of_mooring" deployments,daemonsets,poddisruptionbudgets,networkpolicies,rolebindings,\
roles,serviceaccounts,configmaps
in_namespace delete configmap/mooring-settings configmap/mounter-config lease/flex-provisioner --ignore-not-found
if [ -n "$release" ]; then
    in_namespace delete secrets -l "owner=helm,name=$release"
fi
# Only a namespace that came with Mooring's manifests.
"$kubectl" delete namespaces -l "$part_of_mooring" --field-selector "metadata.name=$namespace" --timeout=3m

echo "Mooring is uninstalled."
if [ -n "$("$kubectl" get namespace "$namespace" --ignore-not-found -o name)" ]; then
    echo "Namespace $namespace stays, with its provisioner ConfigMaps and Secrets."
fi
nodes=$("$kubectl" get nodes -l mooring.dev/mounter -o name)
if [ -n "$nodes" ]; then
    printf '%s\n' "$nodes" >&2
    echo "These nodes may keep Mooring's driver: no mounter ran there, or a volume is still mounted. docs/install.md" \
        "says how to remove it." >&2
fi
