# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# Shared by the clients of a Ceph cluster. Read after client.sh.

# Sets $key, the file with the key of the volume's Secret, and $user, the key's owner: by the names here, or by those of
# ceph-csi's Secrets.
login() {
    key=
    user=${MOORING_OPTION_USER-}
    for names in key:user userKey:userID; do
        [ -s "$MOORING_SECRETS/${names%:*}" ] || continue
        key=$MOORING_SECRETS/${names%:*}
        if [ -z "$user" ] && [ -s "$MOORING_SECRETS/${names#*:}" ]; then
            user=$(cat "$MOORING_SECRETS/${names#*:}")
        fi
        break
    done
    [ -n "$key" ] || fail "the volume's Secret has no key: put there what \"ceph auth get-key client.USER\" prints"
    [ -n "$user" ] ||
        fail "nothing says whose key is in the volume's Secret: put the Ceph client's name there as user, or set" \
            "option user"
    user=${user#client.}
    case $user in
    -* | *[!a-zA-Z0-9._-]*) fail "user $user is not the name of a Ceph client" ;;
    esac
}

# Sets $value to the key itself, which the kernel needs.
key_itself() {
    value=$(sed -e 's/^[[:blank:]]*//' -e 's/[[:blank:]]*$//' "$key")
    case $value in
    '' | *[!a-zA-Z0-9+/=]*)
        fail "the key in the volume's Secret is not a Ceph key: put there what \"ceph auth get-key client.$user\"" \
            "prints"
        ;;
    esac
}

# The monitors in the kernel's form: by address, since it does not resolve names, and with ports that all speak the same
# protocol. Needs $monitors and $no_such_monitor.

# Whether a port accepts connections.
listens() {
    timeout 3 bash -c 'exec 3<>"/dev/tcp/$1/$2"' - "$1" "$2" 2>/dev/null
}

# The address of a monitor.
address_of() {
    case $1 in
    *[!0-9.]*) ;;
    *) printf %s "$1" && return 0 ;;
    esac
    found=$(getent ahosts "$1") || return 0
    case $found in
    *:*) printf '[%s]' "${found%%[!0-9a-f.:]*}" ;;
    *) printf %s "${found%%[!0-9.]*}" ;;
    esac
}

# Sets $addresses from $monitors, and $ms_mode if the kernel needs one and the options have none. The kernel talks to
# all monitors with one protocol: the older one, which needs no mode, unless they have only the newer one.
monitors_for_kernel() {
    common=
    case $ms_mode in
    '') ;;
    legacy) common=6789 ;;
    *) common=3300 ;;
    esac
    addresses=
    IFS=,
    for monitor in $monitors; do
        split_server "$monitor"
        address=$(address_of "$host")
        [ -n "$address" ] || fail "$no_such_monitor"
        common=${common:-$port}
        for one in 6789 3300; do
            if [ -z "$common" ] && listens "$host" "$one"; then
                common=$one
            fi
        done
        addresses=$addresses,$address:${port:-@}
    done
    unset IFS
    common=${common:-6789}
    addresses=${addresses#,}
    case $addresses in
    *:@*) addresses=$(printf %s "$addresses" | sed "s/:@/:$common/g") ;;
    esac
    [ "$common" != 3300 ] || ms_mode=${ms_mode:-prefer-crc}
}
