"""Tokens and keys that are known by their form, whatever they are called: `ghp_...`, `AKIA...`, a JWT.

The rules are those of detect-secrets. Those of its rules that guess, by entropy or by a name, are left out: they would
hide digests, file names and words of a program.
"""

from __future__ import annotations

import functools
import re
from functools import cache
from importlib import import_module
from typing import Any

_DETECTORS = {
    "aws": "AWSKeyDetector",
    "azure_storage_key": "AzureStorageKeyDetector",
    "github_token": "GitHubTokenDetector",
    "gitlab_token": "GitLabTokenDetector",
    "jwt": "JwtTokenDetector",
    "mailchimp": "MailchimpDetector",
    "openai": "OpenAIDetector",
    "pypi_token": "PypiTokenDetector",
    "sendgrid": "SendGridDetector",
    "slack": "SlackDetector",
    "square_oauth": "SquareOAuthDetector",
    "stripe": "StripeDetector",
    "telegram_token": "TelegramBotTokenDetector",
    "twilio": "TwilioKeyDetector",
}
"""The detectors of detect-secrets that are used, by their module."""

# What a text must hold for any of them to find something: importing them takes 0.1 s, and most texts have none of it.
_MAY_HOLD = re.compile(
    r"A3T|ABIA|ACCA|AKIA|ASIA|(?i:aws)|AccountKey=|gh[opsur]_|gl[a-z]{2,5}-|GR1348941|eyJ|[0-9a-z]{32}-us\d"
    r"|T3BlbkFJ|pypi-Ag|SG\.|(?i:xox[a-z]-|hooks\.slack\.com)|sq0csp-|k_live_|\d{8}:|AC[a-z0-9]{32}|SK[a-z0-9]{32}"
)

# Forms that detect-secrets 1.5 does not know yet; each begins with a mark that its issuer keeps for it.
# Sources: huggingface.co/docs/hub/security-tokens; github.blog/changelog/2022-10-18-introducing-fine-grained-personal-
# access-tokens; platform.openai.com/docs/api-reference/authentication; docs.anthropic.com/en/api/overview;
# docs.nvidia.com/ngc/gpu-cloud/ngc-user-guide; cloud.google.com/docs/authentication/api-keys;
# developer.hashicorp.com/vault/docs/concepts/tokens; docs.npmjs.com/about-access-tokens;
# docs.databricks.com/aws/en/dev-tools/auth/pat.
_FURTHER = re.compile(
    r"\bhf_[A-Za-z0-9]{30,}"
    r"|\bapi_org_[A-Za-z0-9]{30,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{22,}"
    r"|\bsk-(?:proj|svcacct|admin|ant|or)-[A-Za-z0-9_-]{20,}"
    r"|\bnvapi-[A-Za-z0-9_-]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\bya29\.[A-Za-z0-9_-]{20,}"
    r"|\bhv[sbr]\.[A-Za-z0-9_-]{24,}"
    r"|\bnpm_[A-Za-z0-9]{36}"
    r"|\bdapi[0-9a-f]{32}"
    r"|\bxapp-\d-[A-Za-z0-9-]{20,}"
)


def replace_tokens(text: str, replacement: str) -> str:
    """Replace each part of a text that has the form of a token or a key, with what follows it without a gap."""
    text = _FURTHER.sub(replacement, text)
    if not _MAY_HOLD.search(text):
        return text
    for detector in _detectors():
        for pattern in detector.denylist:
            whole = re.compile(rf"({pattern.pattern})[\w.=-]*", pattern.flags)
            text = whole.sub(functools.partial(_replaced, replacement, detector), text)
    return text


def _replaced(replacement: str, detector: Any, match: re.Match[str]) -> str:
    is_token = not hasattr(detector, "is_formally_valid") or detector.is_formally_valid(match[1])
    return replacement if is_token else match[0]


@cache
def _detectors() -> tuple[Any, ...]:
    return tuple(
        getattr(import_module(f"detect_secrets.plugins.{module}"), name)() for module, name in _DETECTORS.items()
    )
