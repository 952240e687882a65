"""An exported model goes to the Hub: what a server that speaks the Hub's protocol gets."""

import base64
import http.server
import json
import threading

import pytest
from released import exported

from bert_jax.errors import InputError
from bert_jax.tools.push import main, push


class Hub(http.server.BaseHTTPRequestHandler):
  """Keeps the models that are created and the files of each commit."""

  def do_POST(self):
    body = self.rfile.read(int(self.headers['Content-Length']))
    key, state = self.headers.get('Authorization'), self.server.state
    status, answer = 200, {}
    if key != 'Bearer hf_secret':
      status, answer = 401, {'error': 'Invalid username or password.'}
    elif self.path == '/api/repos/create':
      state['created'].append(json.loads(body))
      answer = {'url': f'{state["address"]}/ada/harbour', 'name': 'ada/harbour'}
    elif '/preupload/' in self.path:
      files = json.loads(body)['files']
      answer['files'] = [x | {'uploadMode': 'regular', 'shouldIgnore': False} for x in files]
    elif '/commit/' in self.path:
      lines = [json.loads(line)['value'] for line in body.splitlines()]
      state['files'] = {x['path']: base64.b64decode(x['content']) for x in lines if 'path' in x}
      answer = {'commitUrl': f'{state["address"]}/ada/harbour/commit/7', 'commitOid': '7'}
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    self.end_headers()
    self.wfile.write(json.dumps(answer).encode())

  def log_message(self, *_):
    pass


@pytest.fixture
def hub(monkeypatch):
  from huggingface_hub import constants

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Hub)
  address = f'http://127.0.0.1:{server.server_port}'
  server.state = {'created': [], 'files': {}, 'address': address}
  threading.Thread(target=server.serve_forever, daemon=True).start()
  monkeypatch.setattr(constants, 'ENDPOINT', address)
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
  monkeypatch.setenv('HF_TOKEN', 'hf_secret')
  yield server.state
  server.shutdown()
  server.server_close()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """An exported model, and files of its owner that are nobody's business."""
  out = exported(tmp_path_factory.mktemp('exports') / 'OUT')[1]
  (out / '.DS_Store').write_text('x')
  (out / '.cache').mkdir()
  (out / '.cache' / 'y').write_text('y')
  return out


def test_a_model_is_uploaded_whole_under_its_name(folder, hub, capsys):
  with pytest.raises(InputError, match='lacks what only you know; fill in'):
    push(folder, 'ada/harbour', private=True, unfinished=False, dry_run=False)
  card = folder / 'README.md'
  text = card.read_text()
  start, end = text.index('<!--'), text.index('-->') + 3
  card.write_text(text[:start] + text[end:])
  main([str(folder), '--to', 'hf:ada/harbour', '--private', '--dry-run'])
  assert not hub['created'] and 'model.safetensors' in capsys.readouterr().out
  main([str(folder), '--to', 'hf:ada/harbour', '--private'])
  assert f'done: {hub["address"]}/ada/harbour' in capsys.readouterr().out
  (created,) = hub['created']
  assert (created['name'], created['organization']) == ('harbour', 'ada')
  assert created.get('visibility') == 'private' or created.get('private')
  own = {x.name: x.read_bytes() for x in folder.iterdir() if not x.name.startswith('.')}
  sent = hub['files']
  assert sent.keys() == own.keys() >= {'config.json', 'model.safetensors', 'README.md'}
  assert {name for name in own if own[name] != sent[name]} == {'README.md'}
  assert "'OUT'" in own['README.md'].decode() and "'OUT'" not in sent['README.md'].decode()
  assert "'ada/harbour'" in sent['README.md'].decode()


@pytest.mark.parametrize(
  'fault, sentence',
  [
    ('key', 'check the name, the connection and the key'),
    ('weights', 'model.safetensors'),
    ('no model', 'is no exported model'),
  ],
)
def test_what_cannot_be_uploaded_is_one_sentence(
  fault, sentence, folder, hub, tmp_path, monkeypatch
):
  if fault == 'key':
    monkeypatch.setenv('HF_TOKEN', 'hf_other')
  out = tmp_path / 'OUT'
  out.mkdir()
  for path in folder.glob('*.*' if fault != 'no model' else 'vocab*'):
    if path.is_file():
      content = path.read_bytes()
      cut = fault == 'weights' and path.suffix == '.safetensors'
      (out / path.name).write_bytes(content[: len(content) // 2] if cut else content)
  with pytest.raises(InputError, match=sentence):
    push(out, 'ada/harbour', private=False, unfinished=True, dry_run=False)
  assert not hub['files']


@pytest.mark.parametrize('name', ['ada/harbour', 'hf:', 'hf:ada/harbour/3', 'hf:../x', 'hf:a/b..c'])
def test_a_name_that_is_none_on_the_hub_is_refused(name, folder, capsys):
  with pytest.raises(SystemExit):
    main([str(folder), '--to', name])
  assert 'is no name on the Hub' in capsys.readouterr().err
