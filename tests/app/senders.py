"""Senders of webhooks, as their own libraries sign.

Knows: which library has which sender. Must never know: gateways.
"""

import base64
import hmac
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import standardwebhooks
import stripe
import svix.webhooks

_SDK: Final = Path(__file__).parents[1] / "sdk"
# In base64, as Standard Webhooks wants it, and text that is none as others do.
WHSEC: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PLAIN: Final = "a secret, äöü"
Headers = Mapping[str, str]
Sign = Callable[[str, str], Headers]
_OCTOKIT: Final = """
import { Webhooks } from "@octokit/webhooks";
const [secret, body] = JSON.parse(process.argv[1]);
console.log(await new Webhooks({ secret }).sign(body));
"""


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def standard(body: str, secret: str = WHSEC, sent_at: datetime | None = None) -> Headers:
    """By `standardwebhooks`."""
    sent_at = sent_at or _now()
    signature = standardwebhooks.Webhook(secret).sign("msg_1", sent_at, body)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": signature,
    }


def by_svix(body: str, secret: str = WHSEC) -> Headers:
    """By `svix`, under the names that its service sends."""
    sent_at = _now()
    signature = svix.webhooks.Webhook(secret).sign("msg_1", sent_at, body)
    time_s = str(int(sent_at.timestamp()))
    return {"svix-id": "msg_1", "svix-timestamp": time_s, "svix-signature": f"v1a,x {signature}"}


def by_stripe(body: str, secret: str = PLAIN) -> Headers:
    """By `stripe`."""
    made = stripe.WebhookSignature.generate_signature_header(body, secret, int(time.time()))
    return {"Stripe-Signature": f"{made},v0=00"}


def github(body: str, secret: str = PLAIN) -> Headers:
    """By `@octokit/webhooks`."""
    words = ["node", "--input-type=module", "-e", _OCTOKIT, json.dumps([secret, body])]
    made = subprocess.run(words, cwd=_SDK, capture_output=True, text=True, check=True)
    return {"X-Hub-Signature-256": made.stdout.strip()}


def by_shopify(body: str, secret: str = PLAIN) -> Headers:
    """By hand: its library takes requests alone."""
    made = hmac.digest(secret.encode(), body.encode(), "sha256")
    return {"X-Shopify-Hmac-Sha256": base64.b64encode(made).decode()}


SENDERS: Final[Mapping[str, tuple[str, Sign]]] = {
    "standard-webhooks": (WHSEC, standard),
    "svix": (WHSEC, by_svix),
    "stripe": (PLAIN, by_stripe),
    "github": (PLAIN, github),
    "shopify": (PLAIN, by_shopify),
}
