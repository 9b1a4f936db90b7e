"""moto, an emulator of AWS, behind a lock: its own threads lose updates. It stops when its input ends."""

import logging
import os
import sys
import threading

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
# Connections stay open, as those of DynamoDB do.
WSGIRequestHandler.protocol_version = "HTTP/1.1"
application = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()


def one_at_a_time(environ, start_response):
    with lock:
        return [b"".join(application(environ, start_response))]


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
os._exit(0)
