"""Secrets in the forms in which users pass them to programs, and values that only look like secrets."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator

from tests.support.tables import read_names


def _alone(number: int) -> str:
    """A secret that can be recognised only by the name next to it."""
    return f"s3cr3t-{number:03d}-zQ"


# Each entry is one word of a command line, or the words of one option.
WORDS: tuple[tuple[str, ...], ...] = (
    ("--token", "{}"),
    ("--token={}",),
    ("--api-key", "{}"),
    ("--apikey={}",),
    ("--hf_token={}",),
    ("-password", "{}"),
    ("--db-password", "{}"),
    ("--client-secret={}",),
    ("--passphrase", "{}"),
    ("--pat", "{}"),
    ("--credentials={}",),
    ("--auth", "me:{}"),
    ("--jwt", "{}"),
    ("-e", "HF_TOKEN={}"),
    ("--env=GITHUB_PAT={}",),
    ("--set", "auth.password={}"),
    ("--opt", "spring.datasource.password={}"),
    ("-H", "Authorization: Bearer {}"),
    ("-H", "Authorization: Basic {}"),
    ("--header=X-Api-Key: {}",),
    ("-H", "X-Auth-Token:{}"),
    ("--cookie", "session={}; theme=dark"),
    ("PGPASSWORD={}",),
    ("SSHPASS={}",),
    ("https://h/?access_token={}",),
    ("--url", "https://h/x?a=1&token={}&b=2"),
    ("--url=https://h/blob?sv=2024&sig={}&se=1",),
    ("--url=https://b.s3.amazonaws.com/k?X-Amz-Signature={}&X-Amz-Expires=60",),
    ("--next=https%3A%2F%2Fh%2F%3Faccess_token%3D{}%26a%3D1",),
    ("--dsn", "Server=h;Password={}"),
    ("--dsn=Server=h;Database=d;User Id=u;Pwd={};Encrypt=yes",),
    ("--dsn", "Server=h;Password=two {};Database=d"),
    ("--dsn", "Password=two {};Server=h"),
    ("--dsn", "Driver=x;UID=u;PWD={{a;{}}}"),
    ("--dsn=DefaultEndpointsProtocol=https;AccountName=a;AccountKey={}==;EndpointSuffix=core.windows.net",),
    ("jdbc:postgresql://h/db?user=u&password={}",),
    ("jdbc:sqlserver://h:1433;databaseName=d;user=u;password={};",),
    ("jdbc:oracle:thin:u/{}@h:1521/x",),
    ("jdbc:mysql://u:{}@h/db",),
    ("postgres://u:{}@h:5432/db",),
    ("postgres://u:p@{}@h/db",),
    ("postgres://u:p/{}@h/db",),
    ("redis://:{}@h:6379/0",),
    ("amqp://u:{}@h//",),
    ("git+https://{}@github.com/me/repo.git@main",),
    ("https://h/t/{}/channel/linux-64/a-1-0.conda",),
    ("--json", '{{"api_key": "{}", "lr": 1}}'),
    ("--json", '{{"a": [{{"db": {{"password": "{}"}}}}]}}'),
    ("--json", '{{"inner": "{{\\"token\\": \\"{}\\"}}"}}'),
    ("--yaml", "lr: 1\napi_key: {}\n"),
    ("--yaml", "db:\n  password: two {}\n"),
    ("--yaml={{user: u, password: {}}}",),
    ("--sh", "export HF_TOKEN={} && python t.py"),
    ("--sh", "python t.py --password '{} x' --lr 1"),
    ("--sh", "curl -H 'Authorization: Bearer {}' https://h"),
    ("--sh", "login --token {}; ls"),
    ("--xml", "<user>u</user><password>{}</password>"),
    ("--netrc", "machine h login u password {}"),
    ("--yaml", "db:\n  password: |\n    {}\n  lr: 1\n"),
    ("--sh", "setenv HF_TOKEN {}; aws configure set aws_secret_access_key {}"),
    ("setenv", "HF_TOKEN", "{}"),
    ("--broker", "u:{}@h.example.org:5672/v"),
    ("-H", "Authorization:", "Bearer", "{}"),
    ("sshpass", "-p", "{}"),
    ("curl", "--user", "me:{}"),
    ("curl", "-u", "me:{}"),
    ("mysql", "-u", "root", "-p{}"),
)

VARIABLES = read_names("secrets", "variables")
"""Environment variables whose values are secrets."""

KNOWN_BY_FORM = (
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ghp_" + "aB1" * 12,
    "github_pat_" + "aB1_" * 20,
    "glpat-" + "aB1-" * 5,
    "hf_" + "aBcDe" * 7,
    "sk-" + "aB1c" * 5 + "T3BlbkFJ" + "aB1c" * 5,
    "sk-proj-" + "aB1_" * 12,
    "sk-ant-" + "api03-" + "aB1_" * 20,
    "xoxb-" + "123456789012-" * 2 + "aB1cD2",
    "nvapi-" + "aB1_" * 16,
    "AIza" + "aB1_c" * 7,
    "SG." + "a" * 22 + "." + "b" * 43,
    "sk_live_" + "a1" * 12,
    "pypi-" + "AgEIcHlwaS5vcmc" + "aB1" * 30,
    "npm_" + "aB1c" * 9,
    "hvs." + "aB1c" * 8,
    ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (b'{"alg":"HS256"}', b'{"sub":"1234567890"}', b"a signature of some bytes")
    ),
)
"""Tokens that can be recognised by their own form."""

IN_CODE = (
    "token = 'TOK-{}'",
    'API_KEY: str = "{}"',
    "os.environ['HF_TOKEN'] = '{}'",
    'os.environ.setdefault("WANDB_API_KEY", "{}")',
    "def connect(password='{}'): pass",
    'headers = {{"Authorization": "Bearer {}"}}',
    'config = {{"db": {{"password": r"{}"}}}}',
    "command = ['mysql', '--password', '{}']",
    "command = 'mysql --password={} -h db'",
    "url = f'https://me:{}@db/x'",
    "url = 'https://h/?access_token={}'",
    "dsn = 'Server=h;Password={}'",
    "# HF_TOKEN={} python train.py",
    "secret = '''{}\nand more'''",
    "parser.add_argument('--token', type=str, default='{}', help='the token')",
    "key = '''-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----'''",
)
"""Lines of Python that contain a secret."""

INNOCENT = read_names("secrets", "innocent_names")
"""Names whose values are not hidden."""

INNOCENT_VALUES = (
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "GPU-11111111-2222-3333-4444-555555555555",
    "550e8400-e29b-41d4-a716-446655440000",
    "/data/ImageNet2012/train.tar.gz",
    "~/runs/exp_017/checkpoint-00042.safetensors",
    "s3://bucket/datasets/c4/en.noblocklist",
    "hf://datasets/allenai/c4@main",
    "meta-llama/Llama-3.1-8B-Instruct",
    "openwebtext-GPT2-b64-ZGF0YXNldA",
    "https://github.com/org/repo/tree/main?tab=readme",
    "https://host:8080/path@v1",
    "ssh://git@github.com/org/repo.git",
    "git+https://github.com/openai/CLIP.git@main#egg=clip",
    "torch==2.6.0+cu124",
    "torch.optim.AdamW",
    "lr=1e-4,betas=(0.9,0.999)",
    '{"max_tokens": 512, "pad_token": "[PAD]", "lr": 0.1}',
    "train.py --lr 1e-3 --tokenizer gpt2 --keys image,label",
    "$HF_TOKEN",
    "${oc.env:HOME}/data",
    "nccl:ring,tree",
    "2024-05-06T17:46:00Z",
    "-----BEGIN CERTIFICATE-----",
)
"""Values that are not hidden if their name is not that of a secret."""


def word_forms() -> Iterator[tuple[str, list[str]]]:
    """Yield each secret, and the words of a command line that contain it."""
    for number, form in enumerate(WORDS):
        secret = _alone(number)
        yield secret, [word.format(secret, secret) for word in form]
    for number, token in enumerate(KNOWN_BY_FORM):
        yield token, [token if number % 2 else f"--name=x:{token}"]


def variables() -> Iterator[tuple[str, str]]:
    """Yield each secret, and the variable that contains it."""
    for number, name in enumerate(VARIABLES):
        yield _alone(500 + number), name


def program() -> tuple[list[str], str]:
    """Return the secrets in a Python script, and the script, which does not use them."""
    secrets = [_alone(700 + number) for number in range(len(IN_CODE))]
    body = "\n".join(form.format(secret) for form, secret in zip(IN_CODE, secrets, strict=True))
    return secrets, f"import argparse, os\nparser = argparse.ArgumentParser()\n{body}\nprint('done')\n"


def format_for_hydra(words: Iterator[str] | list[str]) -> str:
    """Write words as a list in Hydra's grammar."""
    return "[" + ",".join("'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" for word in words) + "]"


def list_words() -> list[str]:
    """Return the words of all forms; an option between two forms ends the first."""
    return list(itertools.chain.from_iterable((*words, "--lr=1") for _, words in word_forms()))
