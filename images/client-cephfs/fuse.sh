# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# CephFS with ceph-fuse. Read by the client's program.

# ceph-fuse mounts in $MOORING_STATE, and its mount is bound to the agent's directory as well. When the server wants
# memory back, ceph-fuse remounts the place where it mounted first, and ends if it can't; but the agent removes the
# mount from its own directory.

# With ceph-fuse's own options.
mount_by_fuse() {
    place=$MOORING_STATE/fs
    mkdir "$place"
    said=$MOORING_STATE/said
    # Process 1 is the container's, and its output is the Pod's log.
    service daemon --pid-file "$MOORING_STATE/pid" -- \
        ceph-fuse -c /dev/null -m "$monitors" --id "$user" "--keyfile=$key" \
        "--client_mountpoint=$path" ${fs_name:+"--client_fs=$fs_name"} "$@" \
        ${MOORING_VOLUME_ID:+-o "fsname=$MOORING_VOLUME_ID,subtype=ceph-fuse"} --client_mount_timeout=20 \
        "--pid-file=$MOORING_STATE/pid" --admin_socket= --log-file=/proc/1/fd/2 --log_to_stderr=true \
        "$place" 2>"$said" || {
        # The last lines, without their dates and sources; the cure follows them.
        sed -e 's/^[0-9T:.+-]* [0-9a-f]* *-*[0-9]* //' -e 's/^ceph-fuse\[[0-9]*\]: //' "$said" | tail -n 2 >&2
        case $(cat "$said") in
        *'name not found'* | *'unable to parse addrs'*) fail "$no_such_monitor" ;;
        *'keyring not found'*) fail "$no_key" ;;
        *bad_method* | *'(13) Permission denied'*) fail "$not_known" ;;
        *'non-allowable root'* | *'(1) Operation not permitted'*) fail "$not_allowed" ;;
        *'mdsmap subscription failed'*) fail "$no_file_system" ;;
        *'(2) No such file'*) fail "$no_directory" ;;
        *'timed out'* | *'(110)'*) fail "$no_answer" ;;
        esac
        fail "failed to mount $path of the Ceph cluster at $monitors"
    }
    mount --bind "$place" "$directory"
}
