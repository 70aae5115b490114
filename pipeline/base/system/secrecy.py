"""Detection of secrets by name (`HF_TOKEN`, `--api-key`, but not `max_tokens`) or by the form of the value.

Complete words of a name are compared, because values that are hidden needlessly must be passed again to reproduce a
run.
"""

from __future__ import annotations

import enum
import itertools
import re
from functools import lru_cache


class Secrecy(enum.IntEnum):
    """The certainty that a name is that of a secret.

    `AMBIGUOUS` names, such as `token` and `key`, have other meanings too: in prose and source code, their value is
    hidden only if it looks like a secret. For `LIKELY` and `AMBIGUOUS` names, values that cannot be secrets, such as
    small numbers and paths, stay visible.
    """

    NONE = 0
    AMBIGUOUS = 1
    LIKELY = 2
    CERTAIN = 3


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def word_set(words: str) -> frozenset[str]:
    """Return the set of words in a list."""
    return frozenset(words.split())


# Owners whose tokens, keys and passwords are written as one word: SSHPASS, HFTOKEN, AWSKEY.
_GLUED = (
    "admin|anthropic|api|app|aws|azure|bot|client|db|deploy|docker|elastic|ftp|gcp|gh|git|github|gitlab|google|hf|http"
    "|huggingface|kafka|kaggle|key|ldap|login|mail|mongo|mysql|openai|oracle|pg|postgres|proxy|rabbit|redis|registry"
    "|service|session|smtp|sql|ssh|user|vnc|wandb|web"
)
# Words that mean a secret, alone or as part of a word: DB_PASSWORD, PGPASSWORD, clientSecret, SECRET_KEY_BASE.
_CERTAIN = re.compile(
    r".*(?:password|passwd|passphrase|passwort|kennwort).*"
    r"|.*(?:secrets?|apikeys?)|passcodes?|jwt|psk|authorization|j?sessionid|phpsessid"
    r"|(?!old).+pwd"
    rf"|(?:{_GLUED}|access|auth|bearer|csrf|id|identity|oauth|refresh|registry|sas|xsrf)tokens?"
    rf"|(?:{_GLUED}|access|account|auth|encryption|license|master|private|priv|sas|signing|storage)keys?"
    rf"|(?:{_GLUED}|keystore|my|root|store|sudo|truststore)(?:pass|pw)"
)
# Words that also mean a secret, but whose value is often the path of a file: GOOGLE_APPLICATION_CREDENTIALS.
_LIKELY = re.compile(r".*credentials?|creds?")
# Pairs of words that mean a secret: API_KEY_PROD, ACCESS_TOKEN_READ.
_PAIRS = frozenset(
    {
        *((word, "key") for word in word_set("access api auth encryption private secret signing subscription")),
        *((word, "token") for word in word_set("access api auth bearer oauth refresh session")),
        ("auth", "header"),
    }
)
# Endings of names that describe a secret without containing it: SSH_KEY_FILE, password_length, token_type.
_ABOUT = word_set(
    "age arn count dim dir directory dirs enabled endpoint env expires expiry field file filename files folder"
    " format len length limit manager max min mode name names num path paths policy prompt rate ref required rotation"
    " size store timeout ttl type types url variable version"
)
# Beginnings of names that are predicates or counts: has_password, num_secrets.
_ASKED = word_set("has is max min n no num")
# Words that may follow the decisive word: TOKEN_2, HF_TOKEN_READ, PASSWORD_B64.
_DROPPED = word_set("b base default dev hex json new old org pem plain prod raw read ro rw staging str write")
_EXTENSIONS = word_set("c cfg conf cpp cu h html ini ipynb jl js json log md py sh so sql toml ts txt xml yaml yml")
# Words whose meaning depends on the word before: `pad_token` is a text token, `sort_key` a column.
_NO_TOKEN = word_set(
    "add added any assistant audio bad batch begin begins boa boi bos by class cls code context cross decoder"
    " dist draft dummy encoder end eoi eos eot eov extra fake filler first forced gist global ignore image img in"
    " input last latent loss mask max mem memory min n new newline next num oov out output pad patch per pool"
    " pooling prev previous prompt query readout reg register response self sentence sep soi space special src"
    " start stop sub suppress target text tgt think time total train unk valid video vision visual vocab word"
)
_NO_KEY = word_set(
    "action any arg args arrow attention attn audio batch bucket by cache caption category checkpoint ckpt class"
    " col column composite config content data dataset date default dict dst embedding enter entry env escape"
    " experiment feature field file first foreign from function group head host hot image img in index input item"
    " job join json k kv label last layer log logit logits lookup loss main map mask max message messages metric"
    " min model module monitor n name natural nested new next num object obs observation old output param"
    " parameter params parent partition path per prefix press prev primary prng prompt pub public q query question"
    " random record reference resume return reward rng root row run s sample score search seed sort source split"
    " src state study tag target text time timestamp to train translation unique v val value video weight weights"
)
_NO_PASS = word_set(
    "backward band double fast first forward full high inference last low multi n next num one per prefill second"
    " single third three train training two val validation"
)
_NO_PATTERN = word_set("exclude file glob ignore include key match name path regex search")
_OF_ACCOUNTS = word_set(
    "access admin anthropic api auth aws azure bearer bot client csrf deploy discord gcp gh git github gitlab"
    " google hf hub huggingface jwt my npm oauth openai personal private pypi refresh secret service session"
    " signing slack ssh stripe user wandb"
)


@lru_cache(maxsize=4096)
def secrecy_of(name: str) -> Secrecy:
    """Rate a name: a key with its parents (`workload.environ.HF_TOKEN`), a flag, a variable, a header."""
    parents, _, last = name.strip("-").rpartition(".")
    if last.lower() in _EXTENSIONS:
        return Secrecy.NONE
    inherited = secrecy_of(parents) if parents else Secrecy.NONE  # credentials.user, secrets.database
    secrecy = _judge_words(last)
    return secrecy if inherited is Secrecy.AMBIGUOUS else max(secrecy, inherited)


def _judge_words(name: str) -> Secrecy:
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and words[-1] in _DROPPED:
        words.pop()
    if not words or words[-1] in _ABOUT or words[0] in _ASKED:
        return Secrecy.NONE
    if any(map(_CERTAIN.fullmatch, words)) or not _PAIRS.isdisjoint(itertools.pairwise(words)):
        return Secrecy.CERTAIN
    if any(map(_LIKELY.fullmatch, words)):
        return Secrecy.LIKELY
    return _judge_noun(words[-1], words[-2] if len(words) > 1 else "", is_variable=name.isupper())


def _judge_noun(noun: str, before: str, *, is_variable: bool) -> Secrecy:
    match noun:
        case "token" | "key":
            return _judge_unless(before, _NO_TOKEN if noun == "token" else _NO_KEY)
        case "tokens" | "keys":
            if not before:
                return Secrecy.AMBIGUOUS if noun == "tokens" else Secrecy.NONE
            ordinary = _NO_TOKEN if noun == "tokens" else _NO_KEY
            is_secret = before in _OF_ACCOUNTS or (is_variable and before not in ordinary)
            return Secrecy.LIKELY if is_secret else Secrecy.NONE
        case "pass":
            return _judge_unless(before, _NO_PASS)
        case "pat" | "pats":
            return _judge_unless(before, _NO_PATTERN)
        case "bearer" | "cookie" | "cookies" | "pw":
            return Secrecy.LIKELY
        case "auth" | "pwd" | "sas" | "sig":
            return _judge_unless(before, frozenset())
    return Secrecy.NONE


def _judge_unless(before: str, ordinary: frozenset[str]) -> Secrecy:
    if before in ordinary:
        return Secrecy.NONE
    return Secrecy.LIKELY if before else Secrecy.AMBIGUOUS


HIDDEN = "<hidden>"
"""Replaces a secret in a record."""

# Placeholders: a variable, or a field that is filled in later.
_REFERENCE = re.compile(
    r"\$\{[^}]*\}|\$[A-Z_][A-Z0-9_]*\b|\$\([^)]*\)?|\{\{.*?\}\}|\{[A-Za-z_][\w.\[\]'\"()]*\}|%[A-Z_]+%|%\(\w+\)s|\.{3}"
)
_SCHEME = re.compile(r"(?:basic|bearer|token|digest|negotiate|apikey)\b", re.IGNORECASE)
_NO_VALUES = frozenset(("", "true", "false", "none", "null", "yes", "no", "on", "off", HIDDEN))
_METHODS = word_set(
    "anonymous auto basic bearer default digest iam int kerberos lambda ldap negotiate ntlm oauth oauth2 optional"
    " password required sasl self ssl str string token"
)
_PATH = re.compile(
    r"(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@ -]*)+"
    r"|(?:[\w.-]+/)*[\w-]+\.(?:cfg|crt|ini|jks|json|key|p12|pem|pub|txt|ya?ml)"
)
_NUMBER = re.compile(r"[+-]?(?:\d{1,5}|\d*\.\d+)(?:[eE][+-]?\d+)?")
_PLAIN_WORD = re.compile(r"[A-Za-z_./:<>|\[\](){}-]*\d{0,4}[\])}>]?|[\w.]+\(.*|[\w-]+=")


def is_harmless(value: str, secrecy: Secrecy) -> bool:
    """Return whether a value cannot be a secret: empty, `true`, a variable; also a path, unless the name is certain."""
    if value.lower() in _NO_VALUES:
        return True
    rest = _SCHEME.sub("", _REFERENCE.sub("", value), count=1)
    if rest != value and not re.search(r"[A-Za-z0-9]", rest):
        return True
    if secrecy is Secrecy.CERTAIN:
        return False
    return value in ("NAME", "VALUE") or value.lower() in _METHODS or bool(_NUMBER.fullmatch(value)) or is_path(value)


def is_path(value: str) -> bool:
    """Return whether a value is a file path, not a base64 key that begins with a slash."""
    if not _PATH.fullmatch(value):
        return False
    return not any(
        len(part) > 24 and re.search(r"\d", part) and not part.islower() for part in re.split(r"[/\\]", value)
    )


def looks_secret(value: str) -> bool:
    """Return whether a word looks like a secret rather than like a word of a language or program."""
    value = _REFERENCE.sub("", value)
    return len(value) >= 6 and not re.search(r"\s", value) and not _PLAIN_WORD.fullmatch(value)


def is_reference(value: str) -> bool:
    """Return whether a value only refers to another: `$HF_TOKEN`, `${USER}:${TOKEN}`."""
    return not re.search(r"[A-Za-z0-9]", _REFERENCE.sub("", value))


def hide(value: str) -> str:
    """Return the replacement of a secret, with the same number of lines."""
    return HIDDEN + "\n" * value.count("\n")
