"""Each arch of configs/pretrain.py as its user meets it: trained, evaluated, asked, converted."""

import json
import math

import numpy as np
import pytest
from conftest import ROOT, fields

from bert_jax import config as c
from bert_jax import evaluate
from bert_jax.errors import InputError
from bert_jax.predict import Model
from bert_jax.tools import convert
from bert_jax.train import train
from bert_jax.workdir import trained

# {arch: the class of transformers that it is exported as; '': it is not; none: its head has no
# class}. With a vocabulary of bytes a roberta is a Roberta; the one that is trained where none is
# named is SentencePiece's.
CLASSES = """modern=ModernBertForMaskedLM albert=AlbertForPreTraining electra=ElectraForPreTraining
deberta=none roberta=BertForMaskedLM ernie=BertForPreTraining wwm=BertForPreTraining
spanbert=BertForMaskedLM fnet=FNetForPreTraining lstm= conv= bag= tutorial= mosaic= neo=
cramming="""
CLASSES = dict(pair.split('=') for pair in CLASSES.split())
SMALL = f"""data.train={ROOT}/bert_jax/*/README.md corpus.eval_share=0.2 model.vocab_size=400
model.dtype=float32 data.seq_length=32 batch_size=4 steps=3 eval.batches=2 log.tensorboard=false
optimizer.warmup=1"""


@pytest.mark.slow
@pytest.mark.parametrize('arch', CLASSES)
def test_an_architecture_is_trained_evaluated_asked_and_converted(arch, tmp_path):
  stages = 'masking.policy=whole_word,phrase@1,entity@2'
  given = fields(SMALL, *([stages] if arch == 'ernie' else []))
  _, results = train(c.load(f'configs/pretrain.py:arch={arch},runlocal', given), tmp_path / 'W')
  assert math.isfinite(results['mlm']) and 4 < results['mlm'] < 8  # of 400 pieces, log 400 = 6
  again, _ = evaluate.evaluate(tmp_path / 'W')
  assert again == results
  model = Model(tmp_path / 'W')
  vectors = model.embed(['the step is saved', 'a run'])
  assert vectors.shape == (2, 128) and np.isfinite(vectors).all()
  whole = trained.load(tmp_path / 'W')
  asked = Model(trained.part_of(whole, 'generator')) if 'replaced' in results else model
  ((candidates,),) = asked.fill_mask(['the [MASK] is saved'], top_k=3)
  assert len(candidates) == 3
  out = f'hf:{tmp_path}/hf'
  if not CLASSES[arch]:
    with pytest.raises(InputError, match='Hugging Face'):
      convert.convert(str(tmp_path / 'W'), out)
    return
  convert.convert(str(tmp_path / 'W'), out)
  said = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert said.get('architectures', ['none']) == [CLASSES[arch]]
  assert Model(trained.load(tmp_path / 'hf')).embed(['a run']).shape == (1, 128)
