"""In place of Neutron: there is no port and no security group. Nova asks for those of a server whenever it shows one."""

import json


def application(environ, start_response):
    what = environ["PATH_INFO"].rstrip("/").rpartition("/")[2].removesuffix(".json")
    found = json.dumps({what.replace("-", "_"): []}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(found)))])
    return [found]
