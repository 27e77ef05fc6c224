"""Uses OpenStack's storage services as their administrator, in Pod client: python3 - WHAT [JSON]

    make                a volume and a share with an access rule, as JSON; the program openstack makes them
    save VOLUME         a snapshot and a backup of a volume, as JSON; the same
    check THINGS        all of them are there, and each service still does something new
    answer              Keystone, Cinder and Manila answer
    request             makes a volume and lists projects and shares, all for one request; its id
    forget REQUEST      removes that volume
    restore THINGS      a volume from the snapshot and one from the backup, as JSON
    endpoint            where Cinder says that it is
    remove THINGS       all of them
    types NAMES         makes volume types, and removes them again when they have a "-" before them
    specs NAME SPECS    gives a volume type these extra specs
    share_type NAME [SPECS]
                        makes a share type whose shares can be restored from snapshots, with further extra specs, and
                        removes it again when it has a "-" before the name
    project NAME        makes a project with a user, and removes both again when there is a "-" before the name; what a
                        Secret for it has, as JSON
    volumes_of NAME     the ids of a project's volumes and shares, as JSON
    times ROUNDS        how long Cinder takes for a volume and for an attachment, in seconds, as JSON: two lists
    server NAME         makes a server of Nova that starts from a volume, and removes both again when there is a "-" before
                        the name; its id, as JSON
    disks SERVER        the ids of the volumes that Nova has attached to a server, without that which it starts from
    let_in              what each rule of each share lets in, and how, as JSON
    everything          the ids of all volumes, snapshots, backups, attachments, shares and rules, as JSON
"""

import json
import subprocess
import sys
import time
import uuid

import openstack

LIMIT = 240
ACCESS = "cephx"
USER = "trial"
CINDER = "cinder-api.openstack.svc:8776"


def patiently(what, work):
    """Does something again and again until it works: a service may be about to come back."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            return work()
        except Exception as error:  # Whatever it is, it may pass.
            if time.monotonic() > end:
                raise SystemExit(f"{what}: {error}") from error
            print(f"{what}: {error}", file=sys.stderr)
            time.sleep(1)


# Each asks Keystone and the service for what they can do.
cloud = openstack.connect(cloud="openstack")
volumes = patiently("Cinder", lambda: cloud.block_storage)
shares = patiently("Manila", lambda: cloud.shared_file_system)


def wait(proxy, one, status="available", limit=LIMIT):
    return proxy.wait_for_status(one, status, failures=["error"], interval=1, wait=limit)


def rule_of(share):
    rules = [rule for rule in shares.access_rules(share) if rule.access_to == USER]
    if not rules or rules[0].state != "active" or not rules[0].access_key:
        raise RuntimeError(f"no active rule: {rules}")
    return rules[0]


def client(*words):
    """What the program of users makes."""
    done = subprocess.run(["openstack", *words, "-f", "json"], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def make():
    volume = wait(volumes, volumes.get_volume(client("volume", "create", "--size", "1", "trial")["id"]))
    made = client("share", "create", "--name", "trial", "CEPHFS", "1")
    share = wait(shares, shares.get_share(made["id"]))
    client("share", "access", "create", share.id, ACCESS, USER, "--access-level", "rw")
    rule = patiently("the access rule", lambda: rule_of(share.id))
    (location,) = list(shares.export_locations(share.id))
    return {
        "volume": volume.id,
        "share": share.id,
        "path": location.path.rpartition(":")[2],
        "user": USER,
        "key": rule.access_key,
    }


def save(volume):
    made = client("volume", "snapshot", "create", "--volume", volume, "trial")
    snapshot = wait(volumes, volumes.get_snapshot(made["id"]))
    # Cinder's scheduler may hear of a new cinder-backup some seconds after that is ready.
    backup = patiently("the backup", lambda: back_up(volume))
    return {"snapshot": snapshot.id, "backup": backup.id}


def back_up(volume):
    one = volumes.get_backup(client("volume", "backup", "create", "--name", "trial", volume)["id"])
    try:
        return wait(volumes, one)
    except openstack.exceptions.ResourceFailure:
        # It counts for the quota.
        volumes.delete_backup(one)
        raise


def available(one):
    if one.status != "available":
        raise RuntimeError(f"{one.id} is {one.status}")


def another_snapshot(volume):
    one = wait(volumes, volumes.create_snapshot(name="another", volume_id=volume), limit=60)
    volumes.delete_snapshot(one)
    volumes.wait_for_delete(one, interval=1, wait=60)


def another_rule(share):
    name = f"another{time.monotonic_ns()}"
    one = shares.create_access_rule(share, access_level="ro", access_type=ACCESS, access_to=name)
    end = time.monotonic() + 60
    while not any(rule.id == one.id and rule.state == "active" for rule in shares.access_rules(share)):
        if time.monotonic() > end:
            raise RuntimeError(f"the rule of {name} is not active")
        time.sleep(1)
    shares.delete_access_rule(one.id, share)


def check(things):
    patiently("the volume", lambda: available(volumes.get_volume(things["volume"])))
    patiently("the snapshot", lambda: available(volumes.get_snapshot(things["snapshot"])))
    patiently("the backup", lambda: available(volumes.get_backup(things["backup"])))
    patiently("the share", lambda: available(shares.get_share(things["share"])))
    patiently("the rule", lambda: rule_of(things["share"]))
    patiently("another snapshot", lambda: another_snapshot(things["volume"]))
    patiently("another rule", lambda: another_rule(things["share"]))


def answer():
    """Also while there is no storage."""
    patiently("Keystone", lambda: list(cloud.identity.projects()))
    patiently("the volumes", lambda: list(volumes.volumes()))
    patiently("the shares", lambda: list(shares.shares()))


def request():
    name = f"req-{uuid.uuid4()}"
    headers = {"X-OpenStack-Request-ID": name}
    cloud.identity.get("/projects", headers=headers)
    shares.get("/shares", headers=headers)
    made = volumes.post("/volumes", json={"volume": {"name": name, "size": 1}}, headers=headers).json()
    wait(volumes, volumes.get_volume(made["volume"]["id"]))
    return name


def forget(name):
    for one in volumes.volumes(name=name):
        volumes.delete_volume(one)
        volumes.wait_for_delete(one, interval=1, wait=LIMIT)


def restore(things):
    snapshot = things["snapshot"]
    clone = wait(volumes, volumes.create_volume(name="of the snapshot", size=1, snapshot_id=snapshot))
    restored = wait(volumes, volumes.create_volume(name="of the backup", size=1))
    volumes.restore_backup(things["backup"], volume_id=restored.id)
    wait(volumes, volumes.get_volume(restored.id))
    return {"of the snapshot": clone.id, "of the backup": restored.id}


def endpoint():
    # Not a quota: Cinder copies those of its settings into the database once.
    versions = volumes.get(f"http://{CINDER}/").json()["versions"]
    (link,) = [link for link in versions[0]["links"] if link["rel"] == "self"]
    return link["href"]


def remove(things):
    # Others may have shares, backups and volumes here, too.
    shares.delete_share(things["share"])
    backup = volumes.get_backup(things["backup"])
    volumes.delete_backup(backup)
    volumes.wait_for_delete(backup, interval=1, wait=LIMIT)
    for name in ("of the snapshot", "of the backup"):
        volume = volumes.get_volume(things[name])
        volumes.delete_volume(volume)
        volumes.wait_for_delete(volume, interval=1, wait=LIMIT)
    for snapshot in list(volumes.snapshots(volume_id=things["volume"])):
        volumes.delete_snapshot(snapshot)
        volumes.wait_for_delete(snapshot, interval=1, wait=LIMIT)
    patiently("delete the volume", lambda: volumes.delete_volume(things["volume"]))


def types(names):
    there = {one.name: one for one in volumes.types()}
    for name in names:
        if name.startswith("-"):
            if name[1:] in there:
                volumes.delete_type(there[name[1:]])
        elif name not in there:
            volumes.create_type(name=name)


def specs(name, wanted):
    (one,) = [one for one in volumes.types() if one.name == name]
    volumes.update_type_extra_specs(one, **wanted)


def share_type(name, more=None):
    there = {one["name"]: one["id"] for one in shares.get("/types").json()["share_types"]}
    if name.startswith("-"):
        if name[1:] in there:
            shares.delete(f"/types/{there[name[1:]]}").raise_for_status()
        return
    if name in there:
        return
    wanted = ("snapshot_support", "create_share_from_snapshot_support")
    own = {"driver_handles_share_servers": "false", **{spec: "true" for spec in wanted}, **(more or {})}
    about = {"name": name, "share_type_access:is_public": True, "extra_specs": own}
    shares.post("/types", json={"share_type": about}).raise_for_status()


def project(name):
    identity = cloud.identity
    if name.startswith("-"):
        identity.delete_user(identity.find_user(name[1:]))
        identity.delete_project(identity.find_project(name[1:]))
        return {}
    domain = {"domain_id": "default"}
    made = identity.create_project(name=name, **domain)
    password = uuid.uuid4().hex
    user = identity.create_user(name=name, password=password, **domain)
    identity.assign_project_role_to_user(made, user, identity.find_role("member"))
    auth = {**cloud.config.config["auth"], "username": name, "password": password, "project_name": name}
    # JSON is YAML, too.
    clouds = {"clouds": {name: {"auth": auth, "region_name": cloud.config.region_name}}}
    return {"clouds.yaml": json.dumps(clouds)}


def volumes_of(name):
    owner = cloud.identity.find_project(name).id
    found = [one.id for one in volumes.volumes(all_projects=True) if one.project_id == owner]
    there = shares.get("/shares/detail?all_tenants=1").json()["shares"]
    return found + [one["id"] for one in there if one["project_id"] == owner]


def times(rounds):
    connector = {"host": "trial", "ip": "192.0.2.1", "initiator": "iqn.2026-11.dev.mooring:trial", "platform": "x86_64"}
    made, attached = [], []
    for _ in range(rounds):
        began = time.monotonic()
        one = volumes.create_volume(name="timed", size=1)
        while volumes.get_volume(one.id).status != "available":
            time.sleep(0.05)
        made.append(time.monotonic() - began)
        began = time.monotonic()
        attachment = volumes.create_attachment(one.id, connector=connector)
        volumes.complete_attachment(attachment)
        attached.append(time.monotonic() - began)
        volumes.delete_attachment(attachment)
        wait(volumes, one)
        volumes.delete_volume(one)
        volumes.wait_for_delete(one, interval=1, wait=LIMIT)
    return {"made": made, "attached": attached}


def server(name):
    compute = cloud.compute
    if name.startswith("-"):
        there = compute.find_server(name[1:])
        if there is not None:
            compute.delete_server(there)
            compute.wait_for_delete(there, interval=1, wait=LIMIT)
        for one in volumes.volumes(name=name[1:]):
            wait(volumes, one)
            volumes.delete_volume(one)
            volumes.wait_for_delete(one, interval=1, wait=LIMIT)
        for flavor in [one for one in compute.flavors() if one.name == name[1:]]:
            compute.delete_flavor(flavor)
        return None
    flavor = compute.create_flavor(name=name, ram=64, vcpus=1, disk=0)
    root = wait(volumes, volumes.create_volume(name=name, size=1))
    bootable = {"os-set_bootable": {"bootable": True}}
    volumes.post(f"/volumes/{root.id}/action", json=bootable).raise_for_status()
    disk = {"boot_index": 0, "uuid": root.id, "source_type": "volume", "destination_type": "volume"}
    # It may take some seconds until Nova knows of a place for it.
    return patiently("a server", lambda: boot(name, flavor, disk))


def boot(name, flavor, disk):
    compute = cloud.compute
    made = compute.create_server(name=name, flavor_id=flavor.id, networks="none", block_device_mapping=[disk])
    try:
        return compute.wait_for_server(made, interval=1, wait=LIMIT).id
    except openstack.exceptions.SDKException:
        compute.delete_server(made)
        compute.wait_for_delete(made, interval=1, wait=LIMIT)
        # A server that found no place leaves its volume reserved.
        for one in [one for one in volumes.attachments() if one.volume_id == disk["uuid"]]:
            volumes.delete_attachment(one)
        raise


def disks(server):
    compute = cloud.compute
    root = compute.get_server(server).name
    found = [one.volume_id for one in compute.volume_attachments(server)]
    return [one for one in found if volumes.get_volume(one).name != root]


def let_in():
    rules = [rule for share in shares.shares() for rule in shares.access_rules(share)]
    return sorted(f"{rule.access_to} {rule.access_level}" for rule in rules)


def everything():
    found = [f"volume {one.id}" for one in volumes.volumes()]
    found += [f"volume snapshot {one.id}" for one in volumes.snapshots()]
    found += [f"backup {one.id}" for one in volumes.backups()]
    found += [f"attachment {one.id}" for one in volumes.attachments()]
    found += [f"share snapshot {one.id}" for one in shares.share_snapshots()]
    for share in shares.shares():
        found += [f"share {share.id}"]
        found += [f"rule {rule.id}" for rule in shares.access_rules(share)]
    return sorted(found)


ALL = (
    make, save, check, answer, request, forget, restore, endpoint, remove,
    types, specs, share_type, project, volumes_of, times, server, disks, let_in,
    everything,
)  # fmt: skip
WHATS = {what.__name__: what for what in ALL}
print(json.dumps(WHATS[sys.argv[1]](*map(json.loads, sys.argv[2:]))))
