"""Secrets in the structures of JSON, YAML, TOML, Python and command lines, also in parts of files."""

from __future__ import annotations

import ast
import json
import time

import pytest

from pipeline.base.system import secrets
from pipeline.base.system.secret_texts import mask_diff, mask_source, mask_text

S = "Zk9qX2vB7mT4wR1p"

TEXTS = (
    '{"name":"DB_PASSWORD","value":"§"}',
    '{"value":"§","type":"text","name":"DB_PASSWORD"}',
    '{"Name":"DB_PASSWORD","Value":"§"}',
    '[{"Key":"HF_TOKEN","Value":"§"}]',
    '{"ParameterKey":"DbPassword","ParameterValue":"§"}',
    'no access: {"name":"DB_PASSWORD","value":"§"} was sent',
    '{"inner":"{\\"name\\":\\"DB_PASSWORD\\",\\"value\\":\\"§\\"}"}',
    "env:\n- name: DB_PASSWORD\n  value: §\n",
    "env:\n- value: §\n  name: DB_PASSWORD\n",
    "a: {{ template }}\nenv:\n- name: DB_PASSWORD\n  type: text\n  value: §\nb: 1\n",
    "- {name: DB_PASSWORD, value: §}",
    "env:\n  - DB_PASSWORD=§\n",
    "<property><name>db.password</name><value>§</value></property>",
    '<add key="Password" value="§"/>',
    "--env name=DB_PASSWORD,value=§",
    '{"auths":{"h":{"auth":"§","identitytoken":"§","registrytoken":"§"}}}',
    "token: !!str §\n",
    "token: !own &a '§'\n",
    "token: &a §\nb: *a\n",
    "{token: !!str §}",
    "tokens: &a [§, §]\n",
    "password: !vault |-\n  §\n  §\nlr: 1\n",
    "password:\n  §\n",
    "? password\n: §\n",
    'password: "a\n  §"\n',
    'tokens = [\n  "§",\n  "§",\n]\n',
    'secret = """\nS\n"""\n',
    'db = { user = "u", password = "§" }\n',
    "machine h\nlogin u\npassword §\n",
    "machine h\n  password §\n  login u\n",
    "default login u password §",
    "h:5432:db:u:§\n",
    "sshpass -p'§' ssh h",
    'sshpass -p "a §" ssh h',
    "docker login -u bob -p § reg",
    "sudo /usr/bin/podman login -p=§ reg && podman run -p 80:80 x",
    "docker \\\n login \\\n -p§ reg",
    '["docker", "login", "-u", "bob", "-p", "§"]',
    "mysql -u root -p'§' db",
    "redis-cli -h h -a '§' ping",
    "ldapsearch -x -w '§'",
    "curl -fsSu bob:§ h",
    "curl 'https://h/?a=1|2;3' -u bob:§",
    "skopeo copy --creds u:§ a b",
    "wandb login --relogin §",
    "auth=('bob', '§')",
    "get(u, auth=('bob', '§')) failed",
    "export TOKEN=$'§'",
    "http://bob:ab?§@mlflow:5000",
)
"""Texts that hold the secret §."""

SOURCES = (
    "PASSWORD = ('§')",
    "PASSWORD = (\n    '§'\n)",
    "PASSWORD = 'aa' '§'",
    "PASSWORD = 'aa' + '§'",
    "PASSWORD = \\\n    '§'",
    "PASSWORD: Final = ('é'\n  '§')",
    "TOKENS = ['§', '§']",
    "TOKENS = {'a': '§'}",
    "x = SecretStr('§')",
    "password = SecretStr('§')",
    "api_key: str = Field(default='§', description='the key')",
    "api_key: str = field(default_factory=lambda: '§')",
    "token = os.environ.get('T') or '§'",
    "token = os.environ.get('T', '§')",
    "x = os.getenv('HF_TOKEN', '§')",
    "token = '§' if x else None",
    "token = b'§'.decode()",
    "token = base64.b64decode('§')",
    "user, password = 'bob', '§'",
    "if (token := '§'): pass",
    "def f(*, password=('§')) -> None: pass",
    "@app(token=('§'))\ndef f(): pass",
    "d = dict([('password', '§')])",
    "d.update({'password': 'a' '§'})",
    "env = Env(value='§', name='DB_PASSWORD')",
    "setattr(x, 'password', '§')",
    "parser.add_argument('-t', '--token', help='x (y)', default=('§'))",
    "subprocess.run([\n 'docker',\n 'login',\n '-p',\n '§',\n])",
    "subprocess.run(['mysql', '--password', ('§')])",
    "r = requests.get(u, auth=('bob', '§'))",
    "session.auth = 'bob', '§'",
    "headers = {'Authorization': 'Bearer ' + '§'}",
    'example = """\nPASSWORD = (\'§\')\n"""',
)
"""Programs that hold the secret §."""

PARTS = (
    "    api_key=(\n        '§'),\n    lr=1,\n)",
    "config(\n    token=(\n        '§'",
    "    'a': 1, 'token': ('§'),",
    "elif f(token=('§')):\n    pass",
    'end of a text."""\nPASSWORD = (\'§\')\n\ndef f():\n    """A text."""',
    "print 'x'\nPASSWORD = ('§')",
    "cdef str password = '§'",
)
"""Parts of programs, which cannot be parsed as a whole."""


VISIBLE = (
    "max_tokens: 512\npad_token: '[PAD]'\ntoken: $HF_TOKEN\n",
    '{"name": "learning_rate", "value": "Zk9qX2vB7mT4wR1p"}',
    '{"name": "SSL_KEY", "value": "/etc/ssl/server.key"}',
    '{"name": "HF_TOKEN", "value": "$HF_TOKEN"}',
    '{"name": "num_tokens", "value": 4096}',
    "- name: HF_TOKEN\n  valueFrom:\n    secretKeyRef:\n      name: hub\n",
    "docker run -p 8080:80 image\nssh -p 22 host\nmkdir -p a/b",
    "tokenizer: &a gpt2\nvocabulary: *a\n",
    "machine learning with password files",
    "sort_keys = ['a1b2c3', 'd4e5f6']",
    "a:1:b:c\n",
)
VISIBLE_SOURCES = (
    "token = os.environ['HF_TOKEN']",
    "token = os.environ.get('HF_TOKEN', '')",
    "password = read_secret('prod/db').decode('utf-8')",
    "TOKEN = re.compile(r'[a-z]{3}\\d+(?:x|y)')",
    "api_key: str = Field(default='', description='The key of the service, 32 digits')",
    "key = jax.random.PRNGKey(0)",
    "data = {'name': 'learning_rate', 'value': 'Zk9qX2vB7mT4wR1p'}",
    "for key in ('password', 'secret'): print(key)",
    "login(token=args.token, key=key)",
    "pad_token = ('[PAD]')",
)


def list_forms() -> list[tuple[str, str]]:
    """Return texts and the names of their files."""
    return [*((form, "notes.txt") for form in TEXTS), *((form, "train.py") for form in SOURCES + PARTS)]


@pytest.mark.parametrize(("form", "file"), list_forms())
def test_no_structure_shows_its_secret(form: str, file: str) -> None:
    text = form.replace("§", S)
    masked = mask_source(text, file)
    assert S not in masked and masked.count("\n") == text.count("\n")
    assert mask_source(masked, file) == masked
    lines = "".join(f"\n+{line}" for line in text.split("\n"))
    diff = f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1,2 +1,9 @@{lines}"
    assert S not in mask_diff(diff) and mask_diff(diff).count("\n") == diff.count("\n")
    if form in SOURCES:
        ast.parse(masked)
    elif form.startswith(('{"', "[{")):
        json.loads(masked)


@pytest.mark.parametrize("text", VISIBLE)
def test_other_values_of_structures_stay(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize("code", VISIBLE_SOURCES)
def test_other_literals_of_programs_stay(code: str) -> None:
    assert mask_source(code, "train.py") == code


def test_a_value_that_was_changed_is_hidden_in_both_versions() -> None:
    diff = (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,4 +1,4 @@\n"
        f"-PASSWORD = (\n+PASSWORD = SecretStr(\n     '{S}'\n )\n"
    )
    assert mask_diff(diff) == diff.replace(S, "<hidden>")


def test_lines_may_end_with_a_carriage_return() -> None:
    for end in ("\r", "\r\n"):
        code = f"a = 1{end}f(a,{end} token='{S}'){end}"
        assert mask_source(code, "a.py") == code.replace(S, "<hidden>")


def test_words_and_maps_are_masked_like_texts() -> None:
    assert secrets.mask_words(["docker", "login", "-u", "bob", "-p", "S"])[-1] == "<hidden>"
    assert secrets.mask_words(["curl", "h", "-su", "bob:S"]) == ["curl", "h", "-su", "<hidden>"]
    assert secrets.mask({"Name": "HF_TOKEN", "Value": "S"}) == {"Name": "HF_TOKEN", "Value": "<hidden>"}
    assert secrets.mask({"name": "LR", "value": "S"}) == {"name": "LR", "value": "S"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("a.py", "PASSWORD = ('Zk9qX2vB7mT4wR1p')\n"),
        ("a.py", "token = f('a', g(\n"),
        ("a.py", '"""token = (\n'),
        ("a.yaml", "- name: DB_PASSWORD\n  value: {{ a }}: b\n"),
        ("a.txt", 'INFO token: bad {"a": [1, 2]} password=x\n'),
        ("a.txt", "{[token: "),
    ],
)
def test_the_time_is_bounded_for_what_cannot_be_parsed(file: str, line: str) -> None:
    text = line * (100_000 // len(line))
    begin = time.process_time()
    masked = mask_source(text, file)
    assert masked.count("\n") == text.count("\n")
    assert time.process_time() - begin < 3  # on a busy machine; 0.3 s on a quiet one


def test_anchors_that_multiply_names_take_no_time() -> None:
    text = "a0: &a0 {p: x, token: s3cret-of-mine}\n"
    text += "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 20))
    begin = time.process_time()
    assert "s3cret-of-mine" not in mask_text(text)
    assert time.process_time() - begin < 2
