"""tools.vocab: the same bytes every time, any files, loaded by others, mistakes in one sentence."""

import json

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer

from bert_jax import tokenizers
from bert_jax.tools import vocab


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('texts')
  rng = np.random.default_rng(0)
  for name, letters, number in (('big', 'abcdefghij', 300), ('small', 'klmnopqrst', 30)):
    known = [''.join(rng.choice(list(letters), rng.integers(2, 9))) for _ in range(100)]
    lines = [' '.join(rng.choice(known, 12)) for _ in range(number)]
    (folder / f'{name}.txt').write_text('\n'.join([*lines, '[MASK] <unk> [unused1] ab']) + '\n')
  return folder


def run(capsys, *arguments, code=0):
  """What the command prints: its result, or its sentence if it is refused."""
  given = [str(x) for argument in arguments for x in str(argument).split()]
  if not code:
    vocab.main(given)
    return json.loads(capsys.readouterr().out)
  with pytest.raises(SystemExit) as ended:
    vocab.main(given)
  said = capsys.readouterr().err
  assert ended.value.code == code and 'Traceback' not in said
  return said.splitlines()[-1]


@pytest.mark.parametrize('kind', ['wordpiece', 'unigram', 'bpe', 'byte_bpe --cased'])
def test_the_same_text_gives_the_same_bytes(folder, tmp_path, capsys, kind):
  named = f'--input big={folder}/big.txt --input small={folder}/small.txt'
  by_pattern, files = f'--input {folder}/{{language}}.txt --languages big,small', []
  for number, inputs in enumerate((named, named, by_pattern)):
    out = tmp_path / str(number)
    told = run(capsys, f'{inputs} --kind {kind} --size 265 --sampling 0.7 --out {out}')
    assert told['pieces'] + told.get('unused', 0) == 265 and told['files'] == 2
    assert {name: x['documents'] for name, x in told['languages'].items()} == {'big': 1, 'small': 1}
    files.append({p.name: p.read_bytes() for p in out.iterdir()})
  assert files[0] == files[1] == files[2]


@pytest.mark.parametrize('flags', ['', '--cased', '--no-cjk-spaces'])
def test_others_read_the_wordpiece_vocabulary(folder, tmp_path, capsys, flags):
  texts = (folder / 'big.txt').read_text().splitlines()[:200] + ['Ünïcode 北京 x', 'a' * 150]
  run(capsys, f'--input {folder}/big.txt --size 300 --out {tmp_path} {flags}')
  lower, spaces = flags != '--cased', flags != '--no-cjk-spaces'
  options = dict(lowercase=lower, strip_accents=lower, handle_chinese_chars=spaces)
  theirs = BertWordPieceTokenizer(str(tmp_path / 'vocab.txt'), **options)
  ours = tokenizers.load_folder(tmp_path)
  for line, ids in zip(texts, ours.ids_batch(texts), strict=True):
    assert ids.tolist() == theirs.encode(line, add_special_tokens=False).ids
  assert len(ours.ids_batch(['北京'])[0]) == 1 + spaces


def test_any_files_make_the_languages(folder, tmp_path, capsys):
  lines = [json.dumps({'body': f'ab abc {i} \u2028 x\u0085y'}) for i in range(20)]
  (tmp_path / 'a=b.jsonl').write_text('\n'.join(lines) + '\n')
  (tmp_path / 'latin1.txt').write_bytes('Köln und Öl\n'.encode() * 3)
  inputs = f'--input x={folder}/big.txt --input x={tmp_path}/a=b.jsonl --input {tmp_path}/a=b.jsonl'
  given = f'{inputs} --input z-z={tmp_path}/lat*.txt --text-field body --size 300'
  told = run(capsys, f'{given} --out {tmp_path}/new/V')
  languages = told.pop('languages')
  assert {name: own['documents'] for name, own in languages.items()} == {'x': 21, '': 20, 'z-z': 1}
  assert sum(own['share'] for own in languages.values()) == pytest.approx(1, abs=1e-5)
  assert (told['files'], told['documents'], told['invalid_utf8_lines']) == (4, 42, 0)
  assert told['pieces'] + told['unused'] == 300 == tokenizers.load_folder(told['out']).vocab_size


def test_mistakes_are_one_sentence(folder, tmp_path, capsys):
  source, missing, out = f'--input {folder}/big.txt', '--input /no.txt', tmp_path / 'V'
  refused = lambda given, at=out: run(capsys, f'{given} --out {at}', code=2)
  assert 'does not exist' in refused(missing)
  assert '--sampling is 2.0' in refused(f'{source} --sampling 2')
  assert '(--size) 20 cannot hold the' in refused(f'{source} --size 20')
  assert 'keeps capitals; say --cased' in refused(f'{source} --kind byte_bpe')
  assert not out.exists()
  written = set()
  for _ in range(2):  # the second time it is there already
    assert run(capsys, f'{source} --size 100 --out {out}')['pieces'] == 100
    written.add((out / 'vocab.txt').read_bytes())
  assert len(written) == 1
  for given in (f'{source} --size 120', f'{source} --size 100 --cased'):
    assert 'holds another vocabulary' in refused(given)
  assert 'vocab.txt is a file' in refused(f'{source} --size 100', out / 'vocab.txt')
