# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# CephFS with the node's kernel. Read by the client's program, after ceph.sh.

# Whether the kernel has it. The kernel loads its module at the first request for a file system of that name.
kernel_can() {
    case $monitors in
    *v[12]:*)
        lacking="only ceph-fuse takes monitors with v1: or v2: before them: write plain addresses, or leave out"
        lacking="$lacking driver=kernel"
        return 1
        ;;
    esac
    lacking="the kernel of this node has no ceph, and loads no such module: install your distribution's package that"
    lacking="$lacking has it, or leave out driver=kernel, and ceph-fuse takes its place"
    has_ceph && return 0
    mount -i -t ceph none "$directory" >/dev/null 2>&1 || true
    has_ceph
}

has_ceph() {
    while read -r first second; do
        [ "$first" != ceph ] && [ "$second" != ceph ] || return 0
    done </proc/filesystems
    return 1
}

# Encodes characters that a field of /etc/fstab can't contain.
field() {
    case $1 in
    *[\\\ \#]*) printf %s "$1" | sed -e 's/\\/\\134/g' -e 's/ /\\040/g' -e 's/#/\\043/g' ;;
    *) printf %s "$1" ;;
    esac
}

mount_by_kernel() {
    ms_mode=
    case ,$for_kernel, in
    *,ms_mode=*) ms_mode=${for_kernel##*ms_mode=} ms_mode=${ms_mode%%,*} ;;
    esac
    asked=$ms_mode
    monitors_for_kernel
    [ -n "$asked" ] || for_kernel=$for_kernel${ms_mode:+,ms_mode=$ms_mode}

    key_itself
    what=$(field "$addresses:$path")
    where=$(field "$directory")
    # In a file beside those of the Secret, in memory, only until it is read; the kernel shows it nowhere. Everyone on
    # the node could see a command line.
    table=$MOORING_SECRETS/.fstab
    trap 'rm -f "$table"' EXIT
    options=nosuid,nodev,name=$user,secret=$value,mount_timeout=20${fs_name:+,mds_namespace=$fs_name}$for_kernel
    printf '%s\n' "$what $where ceph $options 0 0" >"$table"
    said=$(mount -i --fstab "$table" "$directory" 2>&1) || {
        # mount replaces some errors by its own text, and the kernel has one error for two causes: its last log lines
        # tell which.
        case $said in
        *'Failed to parse secret'*) fail "$no_key" ;;
        *'read-only'* | *'ermission denied'*) fail "$not_allowed" ;;
        *'does not exist'* | *'o such file'*) fail "$no_directory" ;;
        *'o route to host'* | *'timed out'* | *'nput/output'*)
            case $(dmesg 2>/dev/null | grep 'ceph: ' | tail -n 3) in
            *'authentication failed'*) fail "$not_known" ;;
            esac
            fail "$no_answer"
            ;;
        esac
        printf '%s\n' "$said" | tail -n 2 >&2
        fail "failed to mount $path of the Ceph cluster at $monitors"
    }
}
