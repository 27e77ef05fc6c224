# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# An image of a Ceph cluster as a device of the node's kernel. Read after client.sh and ceph.sh.
# shellcheck source=images/lib/kernel-module.sh
. /usr/libexec/mooring-lib/kernel-module.sh

rbd_bus=/sys/bus/rbd

# The number and the image of each volume's device. This outlives the container, as the kernel's devices do.
mapped=/run/mooring/rbd

# Whether the kernel has the driver.
kernel_can() {
    case $monitors in
    *v[12]:*)
        lacking="monitors with v1: or v2: before them are not for the kernel: write their addresses alone, or leave"
        lacking="$lacking out driver=kernel"
        return 1
        ;;
    esac
    # The kernel gets everything in one line, with blanks between the parts.
    case $pool$namespace$image in
    *[[:space:]]*)
        lacking="the kernel takes no names with a blank: rename pool, namespace or image, or leave out"
        lacking="$lacking driver=kernel"
        return 1
        ;;
    esac
    lacking="the kernel of this node has no rbd, and loads no such module: install your distribution's package that"
    lacking="$lacking has it, or leave out driver=kernel, and a program takes its place"
    [ -d "$rbd_bus" ] || load_module rbd
    [ -d "$rbd_bus" ]
}

# Writes standard input to a file of the kernel's, which must get it in one piece. Exits with the error's number.
write_to() {
    perl -e '
        local $/;
        my $line = <STDIN>;
        open(my $file, ">", shift) or exit($! + 0);
        defined(syswrite($file, $line)) or exit($! + 0)' "$1"
}

# One at a time on the node, in whichever container: otherwise nothing tells which call a new device belongs to.
one_at_a_time() {
    mkdir -p "$MOORING_KUBELET_ROOT/plugins/mooring.dev" "$mapped"
    exec 9>"$MOORING_KUBELET_ROOT/plugins/mooring.dev/rbd.lock"
    flock 9
}

numbers() {
    ls "$rbd_bus/devices" 2>/dev/null || true
}

# The image of a device.
image_of() {
    about=$rbd_bus/devices/$1
    echo "$(cat "$about/pool" 2>/dev/null)/$(cat "$about/pool_ns" 2>/dev/null)/$(cat "$about/name" 2>/dev/null)"
}

# The ids by which the kernel knows the image of a device: of cluster, pool, namespace, image and snapshot.
identity_of() {
    for part in cluster_fsid pool_id pool_ns image_id snap_id; do
        cat "$rbd_bus/devices/$1/$part" 2>/dev/null || echo
    done
}

# Fails if the node has an image as another device in use, through another client Pod or other monitors: a second device
# has a cache of its own. One that a client Pod has left behind is removed, which the kernel refuses while it is in use.
fail_if_mapped_twice() {
    ours=$(identity_of "$1")
    for one in $(numbers); do
        [ "$one" != "$1" ] && [ "$(identity_of "$one")" = "$ours" ] || continue
        printf %s "$one" | write_to "$rbd_bus/remove_single_major" ||
            fail "this node has the image $where as rbd$one already, through another client Pod or with other monitors:" \
                "delete the Pods of this node that use it"
    done
}

# Removes the volume's device. The caller repeats it until it succeeds; success if there is none.
unmap() {
    record=$mapped/$MOORING_VOLUME
    [ -s "$record" ] || return 0
    { read -r number && read -r of; } <"$record"
    if [ "$number" = - ]; then
        # A killed mount did not record its device. The kernel refuses to remove a device that is in use.
        for number in $(numbers); do
            [ "$(image_of "$number")" != "$of" ] ||
                printf %s "$number" | write_to "$rbd_bus/remove_single_major" || true
        done
        rm -f "$record"
        return 0
    fi
    tries=0
    # Only if it is still ours: another device may have its number by now.
    while [ "$(image_of "$number")" = "$of" ]; do
        printf %s "$number" | write_to "$rbd_bus/remove_single_major" && break
        # A Pod that is ending may still use the file system, or the kernel may still be writing it.
        tries=$((tries + 1))
        [ "$tries" -lt 150 ] ||
            fail "rbd$number is still in use, or its data is not on the cluster yet: the agent tries again"
        sleep 0.1
    done
    rm -f "$record"
}

# Sets $device to the image's device. Fails with 6 (ENXIO) if the image has a feature that this kernel lacks.
map() {
    ms_mode=
    monitors_for_kernel
    key_itself
    one_at_a_time
    before=$(numbers)
    record=$mapped/$MOORING_VOLUME
    printf -- '-\n%s\n' "$pool/$namespace/$image" >"$record"
    made=0
    printf '%s name=%s,secret=%s,mount_timeout=20,osd_request_timeout=%s%s%s%s %s %s -' \
        "$addresses" "$user" "$value" "$io_timeout" \
        "${ms_mode:+,ms_mode=$ms_mode}" \
        "${namespace:+,_pool_ns=$namespace}" "${read_only:+,ro}" "$pool" "$image" |
        write_to "$rbd_bus/add_single_major" || made=$?
    number=
    for one in $(numbers); do
        case " $(echo $before) " in
        *" $one "*) ;;
        *) number=$one ;;
        esac
    done
    [ -z "$number" ] || printf '%s\n%s\n' "$number" "$pool/$namespace/$image" >"$record"
    exec 9>&-
    if [ "$made" -ne 0 ]; then
        [ -n "$number" ] || rm -f "$record"
        return "$made"
    fi
    fail_if_mapped_twice "$number"
    device=/run/mooring-devices/rbd$number
    mkdir -p "${device%/*}"
    rm -f "$device"
    # This container's /dev has the devices from its start.
    numbers=$(cat "/sys/block/rbd$number/dev")
    mknod "$device" b "${numbers%:*}" "${numbers#*:}"
}
