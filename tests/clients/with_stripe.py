"""Stripe's SDK, which repeats requests itself."""

from urllib.parse import urlsplit

import stripe

from operations import send_all

# The SDK's back-off starts at half a second and grows to five; these values suit a test.
stripe.HTTPClient.INITIAL_DELAY = 0.05
stripe.HTTPClient.MAX_DELAY = 1


def make_send(url, retries):
    base = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    client = stripe.StripeClient(
        "ann",
        base_addresses={"api": base},
        max_network_retries=retries,
        http_client=stripe.RequestsClient(timeout=30),
    )

    def send(operation, key):
        payment = {"amount": operation, "currency": "eur"}
        return client.v1.payment_intents.create(payment, {"idempotency_key": key}).id

    return send


send_all(make_send)
