# shellcheck shell=sh disable=SC2154 # the test sets NODE
# Makes sessions as open-iscsi does: one for each target, portal and interface, with the login of the record that was
# made by the last `--op new`. A portal with a file in `logins` accepts that login alone. Each session has a device for
# each of LUN 1 and 2, whose identifier is that of its portal in `identifiers`.
interface=default portal='' sid='' value='' action=''
while [ $# -gt 0 ]; do
    case $1 in
    --interface) interface=$2 && shift ;;
    --portal) portal=$2 && shift ;;
    --sid) sid=$2 && shift ;;
    --value) value=$2 && shift ;;
    --targetname) target=$2 && shift ;;
    --login | --logout) action=$1 ;;
    --op) action=$2 && shift ;;
    esac
    shift
done
# It stores an IPv6 address without its brackets.
address=${portal%:*}
address=${address#\[}
address=${address%\]}
record=$NODE/records/$portal-$interface
mkdir -p "$NODE/records" "$NODE/interfaces"
login() { sed -n "s/^node.session.auth.$1 = //p" "$record"; }
case $action in
show) [ -e "$NODE/interfaces/$interface" ] || exit 1 ;;
update) echo "$value" >"$NODE/interfaces/$interface" ;;
new) [ -z "$portal" ] || cp "$NODE/etc/iscsi/iscsid.conf" "$record" ;;
--login)
    for session in "$NODE"/sys/class/iscsi_session/session*; do
        connection=$NODE/sys/class/iscsi_connection/connection${session##*session}:0
        [ "$(cat "$session/targetname" "$session/ifacename" "$connection/persistent_address")" != \
            "$(printf '%s\n' "$target" "$interface" "$address")" ] || exit 15
    done 2>/dev/null
    [ ! -e "$NODE/logins/$portal" ] || [ "$(login username):$(login password)" = "$(cat "$NODE/logins/$portal")" ] || exit 24
    number=$(($(cat "$NODE/number" 2>/dev/null || echo 0) + 1))
    echo "$number" >"$NODE/number"
    session=$NODE/sys/class/iscsi_session/session$number
    connection=$NODE/sys/class/iscsi_connection/connection$number:0
    mkdir -p "$session" "$connection"
    echo "$target" >"$session/targetname"
    echo "$interface" >"$session/ifacename"
    cat "$NODE/interfaces/$interface" >"$session/initiatorname" 2>/dev/null ||
        sed -n 's/^InitiatorName=//p' "$NODE/etc/iscsi/initiatorname.iscsi" >"$session/initiatorname"
    for key in username password username_in password_in; do
        value=$(login "$key")
        echo "${value:-(null)}" >"$session/$key"
    done
    echo "$address" >"$connection/persistent_address"
    echo "${portal##*:}" >"$connection/persistent_port"
    for lun in 1 2; do
        device=$session/device/target$number:0:0/$number:0:0:$lun/block/sd$number-$lun
        mkdir -p "$device/device"
        echo "8:$number$lun" >"$device/dev"
        cat "$NODE/identifiers/$portal" >"$device/device/wwid" 2>/dev/null || true
    done
    ;;
--logout) rm -r "$NODE/sys/class/iscsi_session/session$sid" ;;
esac
