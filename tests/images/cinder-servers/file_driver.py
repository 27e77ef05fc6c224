"""A back end of Cinder whose volumes are files: what LVM's driver is, without the device mapper.

Cinder's own helper for tgt serves them, so that targets, portals and passwords are what they are with LVM.
"""

import os
import subprocess

from oslo_config import cfg
from oslo_utils import importutils

from cinder import interface
from cinder.volume import configuration, driver

OPTIONS = [cfg.StrOpt("file_directory", default="/srv/volumes", help="Where the files are.")]

cfg.CONF.register_opts(OPTIONS, group=configuration.SHARED_CONF_GROUP)


@interface.volumedriver
class FileDriver(driver.VolumeDriver):
    VERSION = "1"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.configuration.append_config_values(OPTIONS)
        self.target_driver = importutils.import_object(
            self.target_mapping["tgtadm"], configuration=self.configuration, executor=self._execute
        )

    def check_for_setup_error(self):
        os.makedirs(self.configuration.file_directory, exist_ok=True)

    def _update_volume_stats(self):
        disk = os.statvfs(self.configuration.file_directory)
        self._stats = {
            "volume_backend_name": self.configuration.volume_backend_name,
            "vendor_name": "Mooring's tests",
            "driver_version": self.VERSION,
            "storage_protocol": self.target_driver.storage_protocol or self.target_driver.protocol,
            "pools": [
                {
                    "pool_name": "files",
                    "total_capacity_gb": disk.f_blocks * disk.f_frsize / 2**30,
                    "free_capacity_gb": disk.f_bavail * disk.f_frsize / 2**30,
                    "thin_provisioning_support": True,
                    "max_over_subscription_ratio": "20",
                    "provisioned_capacity_gb": 0,
                    "reserved_percentage": 0,
                    "multiattach": True,
                }
            ],
        }

    def local_path(self, one):
        return os.path.join(self.configuration.file_directory, one["name"])

    def _copy(self, source, target):
        # A copy that was cut off is not taken for a whole one.
        new = f"{self.local_path(target)}.new"
        subprocess.run(["cp", "--sparse=always", "--reflink=auto", self.local_path(source), new], check=True)
        os.rename(new, self.local_path(target))

    def _remove(self, one):
        if os.path.exists(self.local_path(one)):
            os.unlink(self.local_path(one))

    def create_volume(self, volume):
        self.extend_volume(volume, volume["size"])

    def extend_volume(self, volume, new_size):
        with open(self.local_path(volume), "ab") as file:
            file.truncate(new_size * 2**30)
        self.target_driver.extend_target(volume)

    def delete_volume(self, volume):
        self._remove(volume)

    def create_snapshot(self, snapshot):
        self._copy(snapshot["volume"], snapshot)

    def delete_snapshot(self, snapshot):
        self._remove(snapshot)

    def create_volume_from_snapshot(self, volume, snapshot):
        self._copy(snapshot, volume)
        self.extend_volume(volume, volume["size"])

    def create_cloned_volume(self, volume, src_vref):
        self._copy(src_vref, volume)
        self.extend_volume(volume, volume["size"])

    def ensure_export(self, context, volume):
        self.target_driver.ensure_export(context, volume, self.local_path(volume))

    def create_export(self, context, volume, connector):
        made = self.target_driver.create_export(context, volume, self.local_path(volume))
        return {"provider_location": made["location"], "provider_auth": made["auth"]}

    def remove_export(self, context, volume):
        self.target_driver.remove_export(context, volume)

    def initialize_connection(self, volume, connector):
        return self.target_driver.initialize_connection(volume, connector)

    def validate_connector(self, connector):
        return self.target_driver.validate_connector(connector)

    def terminate_connection(self, volume, connector, **kwargs):
        self.target_driver.terminate_connection(volume, connector, **kwargs)
