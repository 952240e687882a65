"""Chinese and multilingual pre-training on real text: slow, and the numbers of the README.

python -m pytest -m slow -s tests/test_real_languages.py
"""

import csv
import json
import zipfile

import pytest
from conftest import run_module

pytestmark = pytest.mark.slow

SETTINGS = [
  '--config.optimizer.name=adamw',
  '--config.optimizer.schedule=cosine',
  '--config.optimizer.learning_rate=2e-3',
  '--config.optimizer.beta2=0.98',
  '--config.model.hidden_dropout_prob=0',
  '--config.model.attention_probs_dropout_prob=0',
  '--config.eval.every=0',
  '--config.log.every=200',
]


def pretrain(args, corpus, workdir, *overrides):
  out = run_module(
    'bert_jax.train',
    '--config',
    f'configs/pretrain.py:runlocal,{args}',
    '--workdir',
    workdir,
    f'--config.data.train={corpus}',
    *SETTINGS,
    *overrides,
    quick=False,
    timeout=3600,
  )
  results = json.loads(out.stdout.splitlines()[-1])
  print({k: round(v, 3) for k, v in results.items() if not isinstance(v, str)})
  return results


def test_chinese_with_whole_words(shared, tmp_path):
  pytest.importorskip('jieba')
  source = ('--input', shared / 'text_zh' / '*.txt', '--format', 'lines')
  run_module(
    'bert_jax.tools.vocab',
    *source,
    '--size',
    8192,
    '--character-coverage',
    0.9995,
    '--out',
    tmp_path / 'V',
  )
  made = run_module(
    'bert_jax.tools.prepare',
    *source,
    '--vocab',
    tmp_path / 'V',
    '--segmenter',
    'jieba',
    '--out',
    tmp_path / 'D',
  )
  print(made.stderr.splitlines()[-1])
  results = pretrain(
    'lang=zh',
    tmp_path / 'D',
    tmp_path / 'W',
    '--config.steps=2000',
    '--config.corpus.eval_share=0.02',
  )
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
      code = {'zho-CN': 'cmn_hans', 'fas': 'pes_1', 'swa': 'swh', 'por': 'por_PT'}.get(
        language, language
      )
      code = {'ell': 'ell_monotonic'}.get(code, code)
      if f'udhr2/{code}.txt' in names:
        (folder / 'rights.txt').write_bytes(declarations.read(f'udhr2/{code}.txt'))
      languages.append(language)
  assert len(languages) == 30
  both = sum((tmp_path / 'text' / k / 'rights.txt').is_file() for k in languages)
  print(f'{both} languages have the declaration')
  source = ('--input', tmp_path / 'text' / '{language}', '--languages', ','.join(languages))
  run_module(
    'bert_jax.tools.vocab',
    *source,
    '--size',
    16000,
    '--cased',
    '--sampling',
    0.7,
    '--character-coverage',
    0.9995,
    '--out',
    tmp_path / 'V',
  )
  made = run_module(
    'bert_jax.tools.prepare', *source, '--vocab', tmp_path / 'V', '--out', tmp_path / 'D'
  )
  print(made.stderr.splitlines()[-1])
  more = ('--config.corpus.languages=()', '--config.corpus.dupe_factor=4')
  pretrain('lang=multi', tmp_path / 'D', tmp_path / 'W', '--config.steps=8000', *more)
  results = pretrain(
    'lang=multi',
    tmp_path / 'D',
    tmp_path / 'W2',
    '--config.steps=1500',
    f'--config.init_from={tmp_path / "W"}',
    "--config.corpus.weights=[('zho-CN',4.0),('kor',1.5)]",
    *more,
  )
  below = {k: results[f'mlm_{k}_below_unigram'] for k in languages}
  print(dict(sorted(below.items(), key=lambda pair: pair[1])))
  assert min(below.values()) > 0
