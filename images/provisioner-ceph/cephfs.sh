# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# CephFS. Read by `provision`. A volume is a directory of a file system (a subvolume) with a quota. Its snapshots are
# the cluster's own, and stay when it goes; the cluster makes its copies.

# Says which directory this run is about.
names() {
    fs=$(pv get --volume fs-name --default "$(pv get fs-name --default cephfs)")
    monitors=$(pv get monitors)
    group=$(pv get subvolume-group --default mooring)
    [ -z "$stands" ] || {
        monitors=${stands%%:/*}
        check_directory "$stands" "$PV_NAME"
        group=$found
    }
    # What is copied.
    of_group=$group
    copied=$(pv get --source source --default '')
    [ -z "$copied" ] || {
        check_directory "$copied" "$SOURCE_PV_NAME"
        of_group=$found
        [ "$(pv get --source fs-name --default "$fs")" = "$fs" ] ||
            refuse "a copy is in the file system of what is copied: correct \"fs-name\" in the ConfigMap or the class"
    }
    for word in "$fs" "$group" "$of_group" "${SNAPSHOT_NAME-}"; do
        case $word in
        -* | *[!a-zA-Z0-9._-]*)
            refuse "\"fs-name\" and \"subvolume-group\" in the ConfigMap, and the names of snapshots, can have" \
                "letters, digits, dots, dashes and underscores" ;;
        esac
    done
}

# Fails unless a source is the directory of a volume. Sets $found to its group. Arguments: the source, the volume.
check_directory() {
    found=${1#*:/}
    case /$found/ in
    */../*) found= ;;
    /volumes/*) found=${found#volumes/} ;;
    *) found= ;;
    esac
    case ${found#*/}/ in
    "$2"/*) found=${found%%/*} ;;
    *) found= ;;
    esac
    [ -n "$found" ] || refuse "source=$1 is not the directory of a subvolume $2, so nothing is done"
}

ceph_fs() {
    run ceph --connect-timeout 20 fs "$@"
}

# Sets $state to how far the cluster is with the copy that this volume is; empty if there is none.
look_at_copy() {
    state=
    if ceph_fs clone status "$fs" "$PV_NAME" --group_name "$group"; then
        state=$(said_of state)
        return 0
    fi
    case $(cat /tmp/said) in
    *ENOENT*) return 0 ;;
    esac
    explain
    fail "the cluster does not say how far the copy is"
}

# A value in what a command printed.
said_of() {
    sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" /tmp/printed | head -n 1
}

# Has the cluster begin to copy. Arguments: the directory, its snapshot.
begin_copy() {
    ceph_fs subvolume snapshot clone "$fs" "$1" "$2" "$PV_NAME" --group_name "$of_group" \
        --target_group_name "$group" || case $(cat /tmp/said) in
    # Another run asked for it.
    *EEXIST*) ;;
    *'threads are busy'*) fail "the cluster makes as many copies as it can at once: this one is tried again" ;;
    *"snapshot '$mark"*'does not exist'*) fail "another run of this copy removed its snapshot: it is made again" ;;
    *ENOENT*)
        explain
        fail "the cluster has no snapshot $2 of the directory $1, or no group $group: it is gone"
        ;;
    *)
        explain
        fail "the cluster did not begin to copy the directory $1"
        ;;
    esac
}

# Waits until this volume is a whole copy, and makes it as large as it is to be.
finish_copy() {
    look_at_copy
    [ "$state" = complete ] || echo "the cluster copies the directory"
    until [ "$state" = complete ]; do
        case $state in
        '') fail "the copy was removed meanwhile: it is made again" ;;
        failed | canceled)
            ceph_fs subvolume rm "$fs" "$PV_NAME" --group_name "$group" --force || true
            fail "the cluster gave the copy up ($state): it is made again; see \"ceph fs status\" and how full it is"
            ;;
        esac
        sleep 1
        look_at_copy
    done
    enlarge
    options
}

# Makes the volume's quota as large as its size. It is never made smaller.
enlarge() {
    ceph_fs subvolume info "$fs" "$PV_NAME" --group_name "$group" || {
        explain
        case $(cat /tmp/said) in
        *ENOENT*) fail "the cluster has no directory for $PV_NAME any more" ;;
        esac
        fail "the cluster does not say how large the directory may become"
    }
    has=$(sed -n 's/.*"bytes_quota": *\([0-9][0-9]*\).*/\1/p' /tmp/printed)
    [ "${has:-0}" -ge "$SIZE" ] ||
        ceph_fs subvolume resize "$fs" "$PV_NAME" "$SIZE" --group_name "$group" --no_shrink || {
        explain
        fail "the cluster did not enlarge the directory's quota"
    }
}

# Prints where the volume is.
options() {
    ceph_fs subvolume getpath "$fs" "$PV_NAME" --group_name "$group" || {
        explain
        fail "the cluster does not say where the directory is"
    }
    pv options client=cephfs source="$monitors:$(cat /tmp/printed)" fs-name="$fs" ${driver:+driver="$driver"} \
        --secret "$(pv get mount-secret)"
}

# Takes a snapshot, unless there is one of this name. Arguments: directory, group, snapshot.
take_snapshot() {
    ceph_fs subvolume snapshot create "$fs" "$1" "$3" --group_name "$2" || {
        explain
        case $(cat /tmp/said) in
        *ENOENT*) fail "the cluster has no directory for $1: the volume is gone" ;;
        esac
        fail "the cluster took no snapshot of the directory $1"
    }
}

# Removes a snapshot. Success if there is none. Arguments as for `take_snapshot`.
remove_snapshot() {
    # The cluster lets go of it a moment after a copy is whole.
    looks=10
    until ceph_fs subvolume snapshot rm "$fs" "$1" "$3" --group_name "$2" --force; do
        case $(cat /tmp/said) in
        *ENOENT*) return 0 ;;
        *'pending clones'*)
            looks=$((looks - 1))
            [ "$looks" -gt 0 ] || fail "the snapshot $3 is still being copied: it is removed when it is not"
            sleep 1
            ;;
        *)
            explain
            fail "the cluster did not remove the snapshot $3"
            ;;
        esac
    done
}

# Sets $taken to the snapshots of a directory, a line for each. Argument: the directory.
list_snapshots() {
    taken=
    ceph_fs subvolume snapshot ls "$fs" "$1" --group_name "$of_group" || case $(cat /tmp/said) in
    *ENOENT*) return 0 ;;
    *)
        explain
        fail "the cluster does not list the snapshots of the directory $1"
        ;;
    esac
    taken=$(names_in_printed)
}

# All names in the list that a command printed.
names_in_printed() {
    sed -n 's/.*"name": *"\([^"]*\)".*/\1/p' /tmp/printed
}

# Sets $holder to the directory that has the snapshot; empty if none has. An administrator who brought a snapshot named
# nothing but that.
find_holder() {
    [ -z "$holder" ] || return 0
    ceph_fs subvolume ls "$fs" --group_name "$of_group" || {
        explain
        fail "the cluster does not list the directories of the group $of_group"
    }
    for directory in $(names_in_printed); do
        list_snapshots "$directory"
        if printf '%s\n' "$taken" | grep -qxF -e "$SNAPSHOT_NAME"; then
            holder=$directory
            return 0
        fi
    done
}

# Fails without the volume's group. A command that removes something with --force succeeds there.
check_group() {
    ceph_fs subvolumegroup getpath "$fs" "$group" || {
        explain
        fail "the cluster has no group $group in a file system $fs: make it (\"ceph fs subvolumegroup create $fs" \
            "$group\"), or correct \"fs-name\" and \"subvolume-group\" in the ConfigMap"
    }
}

# Removes the volume's directory. Its snapshots stay; those by which it was copied go.
remove() {
    keep=
    tries=60
    until ceph_fs subvolume rm "$fs" "$PV_NAME" --group_name "$group" --force ${keep:+--retain-snapshots}; do
        case $(cat /tmp/said) in
        # Then its content is gone as well.
        *ENOENT*) return 0 ;;
        *ENOTEMPTY*)
            forget_copies
            keep=yes
            ;;
        *'clone in-progress'*)
            stop_copy
            sleep 1
            ;;
        *)
            explain
            fail "the cluster did not remove the directory"
            ;;
        esac
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "the cluster is still at work on the directory: Mooring removes it when it is done"
    done
}

# Removes the snapshots by which the volume was copied, of runs that were cut off.
forget_copies() {
    list_snapshots "$PV_NAME"
    for name in $taken; do
        case $name in
        "$mark"*) remove_snapshot "$PV_NAME" "$group" "$name" ;;
        esac
    done
}

# Stops the copy that this volume was to be, with the snapshot by which it was copied.
stop_copy() {
    look_at_copy
    of=$(said_of subvolume)
    by=$(said_of snapshot)
    from=$(said_of group)
    # One that has just ended can't be stopped.
    ceph_fs clone cancel "$fs" "$PV_NAME" --group_name "$group" || true
    case $by in
    "$mark$PV_NAME") remove_snapshot "$of" "${from:-$group}" "$by" ;;
    esac
}

# Carries out the operation.
operate() {
    case $OPERATION in
    provision)
        # For an existing one, it sets the size.
        ceph_fs subvolume create "$fs" "$PV_NAME" "$SIZE" --group_name "$group" \
            --mode "$(pv get directory-mode --default 0777)" || {
            explain
            check_group
            fail "the cluster did not make the directory"
        }
        options
        ;;
    clone)
        [ -n "$copied" ] || refuse "the volume to copy has no source, so nothing is copied"
        look_at_copy
        [ -n "$state" ] || {
            # It may be of an earlier try, which was given up.
            remove_snapshot "$SOURCE_PV_NAME" "$of_group" "$mark$PV_NAME"
            take_snapshot "$SOURCE_PV_NAME" "$of_group" "$mark$PV_NAME"
            begin_copy "$SOURCE_PV_NAME" "$mark$PV_NAME"
        }
        finish_copy
        remove_snapshot "$SOURCE_PV_NAME" "$of_group" "$mark$PV_NAME"
        ;;
    snapshot)
        [ -n "$stands" ] || refuse "the volume has no source, so no snapshot is taken"
        take_snapshot "$PV_NAME" "$group" "$SNAPSHOT_NAME"
        ;;
    restore)
        look_at_copy
        [ -n "$state" ] || {
            holder=${SOURCE_PV_NAME-}
            find_holder
            [ -n "$holder" ] || fail "the cluster has no snapshot $SNAPSHOT_NAME in the group $of_group: it is gone"
            begin_copy "$holder" "$SNAPSHOT_NAME"
        }
        finish_copy
        ;;
    delete-snapshot)
        check_group
        holder=${PV_NAME-}
        find_holder
        [ -z "$holder" ] || remove_snapshot "$holder" "$group" "$SNAPSHOT_NAME"
        ;;
    expand) enlarge ;;
    delete)
        check_group
        remove
        ;;
    discover)
        # A class for each file system.
        ceph_fs ls || {
            explain
            fail "the cluster does not list its file systems"
        }
        sed -n 's/^name: \([^,]*\),.*/\1/p' /tmp/printed | pv classes --parameter fs-name --expansion
        ;;
    *) refuse "CephFS volumes know no operation $OPERATION" ;;
    esac
}
