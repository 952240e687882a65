"""Chinese and multilingual pre-training on real text: slow, and the numbers of the README.

python -m pytest -m slow -s tests/test_real_languages.py
"""

import csv
import json
import zipfile

import pytest
from conftest import run_module

pytestmark = pytest.mark.slow

SETTINGS = """optimizer.name=adamw optimizer.schedule=cosine optimizer.learning_rate=2e-3
  optimizer.beta2=0.98 model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0 eval.every=0
  log.every=200"""


def run(command, *more, **options):
  """Runs a module of the package whose arguments have no blanks."""
  return run_module(*f'bert_jax.{command}'.split(), *more, **options)


def pretrain(args, corpus, workdir, *overrides):
  config = f'--config configs/pretrain.py:runlocal,{args} --workdir {workdir}'
  fields = [f'--config.{x}' for x in (f'data.train={corpus}', *SETTINGS.split(), *overrides)]
  out = run(f'train {config}', *fields, quick=False, timeout=3600)
  results = json.loads(out.stdout.splitlines()[-1])
  print({k: round(v, 3) for k, v in results.items() if not isinstance(v, str)})
  return results


def prepare(source, out, vocab, prepare=''):
  """Trains a vocabulary and prepares the corpus out / D with it."""
  run(f'tools.vocab --input {source} --character-coverage 0.9995 --out {out}/V {vocab}')
  made = run(f'tools.prepare --input {source} --vocab {out}/V --out {out}/D {prepare}')
  print(made.stderr.splitlines()[-1])
  return out / 'D'


def test_chinese_with_whole_words(shared, tmp_path):
  pytest.importorskip('jieba')
  source = f'{shared}/text_zh/*.txt --format lines'
  corpus = prepare(source, tmp_path, '--size 8192', '--segmenter jieba')
  results = pretrain('lang=zh', corpus, tmp_path / 'W', 'steps=2000', 'corpus.eval_share=0.02')
  assert results['mlm_below_unigram'] > 0.3


def test_thirty_languages(shared, tmp_path):
  """ntrex (news, 123 documents in each language) and, where there is one, the Declaration of Human
  Rights in it (udhr): every language's loss below its own unigram line."""
  with open(shared / 'ntrex' / 'DOCUMENT_IDS.tsv') as file:
    ids = [row[0] for row in csv.reader(file, delimiter='\t')]
  languages = []
  with zipfile.ZipFile(shared / 'udhr' / 'udhr2.zip') as declarations:
    names = declarations.namelist()
    for path in sorted((shared / 'ntrex').glob('newstest2019-*.txt')):
      language = path.name.split('.')[1]
      lines = path.read_text().splitlines()
      parts, last = [], None
      for line, own in zip(lines, ids, strict=True):
        parts += ['', line] if own != last else [line]
        last = own
      folder = tmp_path / 'text' / language
      folder.mkdir(parents=True)
      (folder / 'news.txt').write_text('\n'.join(parts[1:]) + '\n')
      code = {'zho-CN': 'cmn_hans', 'fas': 'pes_1', 'swa': 'swh', 'por': 'por_PT'}
      code = (code | {'ell': 'ell_monotonic'}).get(language, language)
      if f'udhr2/{code}.txt' in names:
        (folder / 'rights.txt').write_bytes(declarations.read(f'udhr2/{code}.txt'))
      languages.append(language)
  assert len(languages) == 30
  both = sum((tmp_path / 'text' / k / 'rights.txt').is_file() for k in languages)
  print(f'{both} languages have the declaration')
  source = f'{tmp_path}/text/{{language}} --languages {",".join(languages)}'
  corpus = prepare(source, tmp_path, '--size 16000 --cased --sampling 0.7')
  more = 'corpus.languages=()', 'corpus.dupe_factor=4'
  results = pretrain('lang=multi', corpus, tmp_path / 'W', 'steps=8000', *more)
  below = {k: results[f'mlm_{k}_below_unigram'] for k in languages}
  print(dict(sorted(below.items(), key=lambda pair: pair[1])))
  # Chinese has the least text, and Korean little more.
  assert min(value for name, value in below.items() if name not in ('zho-CN', 'kor')) > 0
