"""requests, with the retries of urllib3."""

import threading

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError
from urllib3.util import Retry

from operations import send_all

local = threading.local()


def make_send(url, retries):
    policy = Retry(
        total=retries,
        allowed_methods=["POST"],
        status_forcelist=[409, 500, 502, 503, 504],
        backoff_factor=0.05,
        backoff_max=1,
        raise_on_status=False,
    )

    def session():
        # A session is not safe for several threads.
        if not hasattr(local, "session"):
            local.session = requests.Session()
            local.session.mount("http://", HTTPAdapter(max_retries=policy))
        return local.session

    def send(operation, key):
        headers = {"Authorization": "Bearer ann", "Idempotency-Key": f'"{key}"'}
        payment = {"amount": operation, "currency": "eur"}
        # Retry sees only the head of a reply. If the body breaks off, the caller sends the request again.
        for _ in range(retries):
            try:
                response = session().post(url, json=payment, headers=headers, timeout=30)
                break
            except ChunkedEncodingError as error:
                broken = error
        else:
            raise broken
        if not response.ok:
            raise RuntimeError(f"{response.status_code}: {response.text}")
        return response.json()["id"]

    return send


send_all(make_send)
