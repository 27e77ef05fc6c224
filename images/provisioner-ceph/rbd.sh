# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# RBD. Read by `provision`. A volume is an image of a pool, and so is a snapshot. A copy shares the data of its source
# (a clone, of format 2) for as long as there is its source: whose source goes gets data of its own first.

# Says which images this run is about.
names() {
    monitors=$(pv get monitors)
    pool=$(pv get pool --default rbd)
    namespace=$(pv get rbd-namespace --default '')
    image=$pool/${namespace:+$namespace/}$PV_NAME
    if [ -n "$stands" ]; then
        monitors=${stands#rbd://}
        image=${monitors#*/}
        monitors=${monitors%%/*}
        case $stands in
        rbd://?*/?*/"$PV_NAME") ;;
        *) refuse "source=$stands is not an image $PV_NAME, so nothing is done" ;;
        esac
    fi
    # A snapshot is an image beside that of its volume. No volume's name ends so.
    snapshot=${image%/*}/${SNAPSHOT_NAME-}.snapshot
    copied=$(pv get --source source --default '')
    [ -z "$copied" ] || copied=${copied#rbd://*/}
    case $OPERATION:$copied in
    restore:?*) snapshot=${copied%/*}/${SNAPSHOT_NAME-}.snapshot ;;
    clone:?*/"${SOURCE_PV_NAME-}") ;;
    clone:*) refuse "source=$copied is not an image $SOURCE_PV_NAME, so nothing is copied" ;;
    esac
    case $image$snapshot$copied in
    *[!a-zA-Z0-9./_-]* | -*)
        refuse "\"pool\" and \"rbd-namespace\" in the ConfigMap, and the names of snapshots, can have letters," \
            "digits, dots, dashes and underscores" ;;
    esac
}

# Refuses what several nodes would write. Sets $frozen for a copy that is only to be read, which any number can do.
check_access_modes() {
    frozen=
    case $OPERATION:$ACCESS_MODES in
    clone:ReadOnlyMany | restore:ReadOnlyMany) frozen=true ;;
    *:ReadOnlyMany)
        refuse "nobody could write a new RBD volume with access mode ReadOnlyMany: ask for a copy of another claim or" \
            "of a snapshot, or for ReadWriteOnce" ;;
    *Many*) refuse "an RBD volume can be written on one node only: ask for access mode ReadWriteOnce" ;;
    esac
}

# Whether an image is there.
is_there() {
    run rbd info "$1" && return 0
    case $(cat /tmp/said) in
    *'(2) No such file'*) return 1 ;;
    esac
    explain
    fail "the cluster does not say whether it has the image $1"
}

# Removes an image. Success if there is none. Copies of it that share its data get their own.
remove() {
    run rbd rm --no-progress "$1" && return 0
    case $(cat /tmp/said) in
    *'(2) No such file'*) return 0 ;;
    *'watchers'*) fail "the image $1 is still in use: Mooring removes it when no node uses it any more" ;;
    *'snapshots'*) ;;
    *)
        explain
        fail "the cluster did not remove the image $1"
        ;;
    esac
    # A copy that was killed has left them: Mooring removes no image while it is copied.
    run rbd snap ls "$1" || fail "the cluster does not list the snapshots of the image $1"
    ours=$(awk -v mark="$mark" 'index($2, mark) == 1 { print $2 }' /tmp/printed)
    for left in $ours; do
        unmark "$1@$left"
    done
    unshare "$1"
    run rbd rm --no-progress "$1" || {
        explain
        fail "the cluster did not remove the image $1: see \"rbd snap ls --all $1\" and \"rbd children --all $1\""
    }
}

# Gives what shares data with an image its own.
unshare() {
    run rbd children --all "$1" || {
        explain
        fail "the cluster does not list the copies of the image $1"
    }
    # What is behind a name says that an administrator has it in the trash.
    for copied_image in $(awk '{ print $1 }' /tmp/printed); do
        run rbd flatten --no-progress "$copied_image" || case $(cat /tmp/said) in
        # It went meanwhile, or shares nothing any more.
        *'(2) No such file'* | *'(22) Invalid argument'*) ;;
        *)
            explain
            fail "the cluster did not give the copy $copied_image of the image $1 its own data"
            ;;
        esac
    done
}

# Removes the snapshot by which an image is copied. Success if there is none.
unmark() {
    run rbd snap rm --no-progress "$1" || case $(cat /tmp/said) in
    *'(2) No such file'*) ;;
    *)
        explain
        fail "the cluster did not remove the snapshot $1"
        ;;
    esac
}

# Makes an image with what another has at one moment. It gets its name when it is whole. Arguments: what is copied; the
# new image; the snapshot to copy by.
copy() {
    # From an earlier try.
    remove "$2.copy"
    unmark "$1@$3"
    run rbd snap create --no-progress "$1@$3" || {
        explain
        case $(cat /tmp/said) in
        *'(2) No such file'*) fail "the cluster has no image $1: the volume is gone" ;;
        esac
        fail "the cluster took no snapshot of the image $1"
    }
    if can_share "$1"; then
        run rbd clone --rbd-default-clone-format 2 "$1@$3" "$2.copy"
    else
        run rbd cp --no-progress "$1@$3" "$2.copy"
    fi || {
        explain
        fail "the cluster did not copy the image $1"
    }
    # The cluster keeps what the copy shares.
    unmark "$1@$3"
}

# Whether one more copy can share an image's data. A read goes through all images that share it, of which the kernel
# takes 16 in a row; and of an image it takes 510 snapshots.
can_share() {
    run rbd snap ls --all "$1" && [ "$(wc -l </tmp/printed)" -le 250 ] || return 1
    above=$1
    for _ in 1 2 3 4; do
        run rbd info "$above" || return 1
        above=$(sed -n 's/^[[:space:]]*parent: \([^@]*\)@.*/\1/p' /tmp/printed)
        [ -n "$above" ] || return 0
    done
    return 1
}

# Gives a new image its name. Argument: the image.
name() {
    run rbd mv "$1.copy" "$1" || {
        explain
        fail "the cluster did not rename the image $1.copy"
    }
}

# Makes an image of the volume's size at least.
enlarge() {
    run rbd info --format json "$1" || {
        explain
        case $(cat /tmp/said) in
        *'(2) No such file'*) fail "the cluster has no image $1 any more" ;;
        esac
        fail "the cluster does not say how large the image $1 is"
    }
    has=$(sed -n 's/.*"size": *\([0-9][0-9]*\).*/\1/p' /tmp/printed)
    [ -n "$has" ] || fail "the cluster does not say how large the image $1 is"
    # It is never made smaller.
    [ "$has" -ge "$SIZE" ] || run rbd resize --no-progress --size "$(((SIZE + 1048575) >> 20))M" "$1" || {
        explain
        fail "the cluster did not enlarge the image $1"
    }
}

# Prints where the volume is. Argument: its file system.
options() {
    pv options client=rbd source="rbd://$monitors/$image" fs-type="$1" \
        ${driver:+driver="$driver"} ${io_timeout:+io-timeout="$io_timeout"} ${frozen:+frozen="$frozen"} \
        --secret "$(pv get mount-secret)"
}

# Carries out the operation.
operate() {
    case $OPERATION in
    provision)
        check_access_modes
        run rbd create --size "$(((SIZE + 1048575) >> 20))M" "$image" || case $(cat /tmp/said) in
        *'(17) File exists'*)
            # It may be half made; then it is made again.
            run rbd info "$image" || {
                run rbd rm --no-progress "$image" || true
                fail "$image was only half made, and is removed: the next attempt makes it again"
            }
            ;;
        *)
            explain
            fail "the cluster did not make the image $image"
            ;;
        esac
        options "${FS_TYPE:-ext4}"
        ;;
    clone)
        check_access_modes
        is_there "$image" || {
            copy "$copied" "$image" "$mark$PV_NAME"
            enlarge "$image.copy"
            name "$image"
        }
        # What is in it has the file system of its source, whatever the class says.
        options "$(pv get --source fs-type --default ext4)"
        ;;
    snapshot)
        [ -n "$stands" ] || refuse "the volume has no source, so no snapshot is taken"
        is_there "$snapshot" || {
            copy "$image" "$snapshot" "$mark$SNAPSHOT_NAME"
            # A restore may know nothing but the snapshot's name.
            run rbd image-meta set "$snapshot.copy" "${mark}fs-type" "$(pv get --volume fs-type --default ext4)" || {
                explain
                fail "the cluster did not note the file system of the snapshot $snapshot"
            }
            name "$snapshot"
        }
        ;;
    restore)
        check_access_modes
        is_there "$image" || {
            is_there "$snapshot" || fail "the cluster has no snapshot $snapshot: it is gone"
            copy "$snapshot" "$image" "$mark$PV_NAME"
            enlarge "$image.copy"
            name "$image"
        }
        fs_type=$(pv get --source fs-type --default '')
        if [ -z "$fs_type" ] && is_there "$snapshot" && run rbd image-meta get "$snapshot" "${mark}fs-type"; then
            fs_type=$(cat /tmp/printed)
        fi
        options "${fs_type:-ext4}"
        ;;
    delete-snapshot)
        remove "$snapshot"
        remove "$snapshot.copy"
        [ -z "$stands" ] || unmark "$image@$mark$SNAPSHOT_NAME"
        ;;
    expand) enlarge "$image" ;;
    delete)
        remove "$image"
        remove "$image.copy"
        ;;
    discover)
        # A class for each pool that is meant for images.
        run ceph --connect-timeout 20 osd pool ls detail || {
            explain
            fail "the cluster does not list its pools"
        }
        sed -n "s/^pool [0-9]* '\([^']*\)' .* application \([^ ]*,\)\{0,1\}rbd.*/\1/p" /tmp/printed |
            pv classes --parameter pool --expansion
        ;;
    *) refuse "RBD volumes know no operation $OPERATION" ;;
    esac
}
