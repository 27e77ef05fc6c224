"""What the images of OpenStack's services share. Each program is a module: python3 -m openstack_services.NAME."""
