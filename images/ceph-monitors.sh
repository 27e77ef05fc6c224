# shellcheck shell=sh disable=SC2034,SC2154 # variables pass between it and what reads it
# The monitors of a Ceph cluster as the kernel takes them: by their addresses, since it looks up no names, and with ports that all speak in
# one way. Read by the programs of clients that have the kernel speak with a cluster, which have $monitors, $shape, $no_such_monitor and fail.

# Whether somebody listens.
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

# Makes $addresses of $monitors, and $ms_mode, where it takes one that is not said there yet. It speaks with all in one way: the older one,
# for which it takes no mode, unless they have the newer alone.
monitors_for_kernel() {
    port=
    case $ms_mode in
    '') ;;
    legacy) port=6789 ;;
    *) port=3300 ;;
    esac
    addresses=
    IFS=,
    for monitor in $monitors; do
        case $monitor in
        \[*\]) host=$monitor named= ;;
        *:*) host=${monitor%:*} named=${monitor##*:} ;;
        *) host=$monitor named= ;;
        esac
        host=${host#\[}
        host=${host%\]}
        case $named in
        *[!0-9]*) fail "source=$source has a port that is not a number: $shape" ;;
        esac
        address=$(address_of "$host")
        [ -n "$address" ] || fail "$no_such_monitor"
        port=${port:-$named}
        for one in 6789 3300; do
            if [ -z "$port" ] && listens "$host" "$one"; then
                port=$one
            fi
        done
        addresses=$addresses,$address:${named:-@}
    done
    unset IFS
    port=${port:-6789}
    addresses=${addresses#,}
    case $addresses in
    *:@*) addresses=$(printf %s "$addresses" | sed "s/:@/:$port/g") ;;
    esac
    [ "$port" != 3300 ] || ms_mode=${ms_mode:-prefer-crc}
}
