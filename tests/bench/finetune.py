"""Measures fine-tuning on SST-2 beside Hugging Face's Trainer; see bench/__main__.py."""

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from bench import peers

from bert_jax import config as config_lib
from bert_jax import tokenizers, train
from bert_jax.convert import from_huggingface
from bert_jax.tasks import TASKS


def finetune(args):
  """Yields the result {name: value} for each trainer, and their ratio; they take turns."""
  config = config_lib.load('configs/finetune.py:task=sst2,size=minilm')
  config.data.train, config.epochs, config.steps = args.train, 0.0, args.steps
  config.batch_size = args.batch_size
  config.log.every, config.log.tensorboard = max(1, args.steps // 4), False
  tokenizer = tokenizers.load_folder(from_huggingface.locate(config.init_from))
  source = TASKS['classification'].sources(config, tokenizer, ('train',))['train']
  per_step = config.batch_size * len(source.texts) / len(source)
  sides = {'bert_jax': lambda: per_step * _our_steps_per_s(config)}
  if peers.installed('torch', 'transformers', 'accelerate'):
    data = config, source, round(per_step), args.steps
    sides['Trainer'] = lambda: _their_examples_per_s(*data)
    sides['Trainer, group_by_length'] = lambda: _their_examples_per_s(*data, by_length=True)
  measured = peers.in_turn(sides, args.repeat, lambda side: side())
  for name, values in measured.items():
    yield {
      'what': f'finetune, SST-2, 6 layers: {name}',
      **peers.spread('examples/s', values),
      'examples a step': round(per_step, 1),
    }
  yield {'what': 'finetune, SST-2, 6 layers', **peers.ratios(measured)}


def _our_steps_per_s(config):
  speeds = [line['steps_per_s'] for line in training_lines(config)]
  return statistics.harmonic_mean(speeds)  # over the whole time, as for the Trainer


def _their_examples_per_s(config, source, batch_size, steps, by_length=False):
  import transformers

  tokenizer = source.tokenizer
  data = [
    {'input_ids': [tokenizer.cls_id, *ids.tolist(), tokenizer.sep_id], 'labels': int(label)}
    for (ids,), label in zip(source.texts, source.per_example['labels'], strict=True)
  ]
  folder = str(from_huggingface.locate(config.init_from))
  model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
  padded = transformers.DataCollatorWithPadding(transformers.AutoTokenizer.from_pretrained(folder))
  times = []

  class Clock(transformers.TrainerCallback):
    def on_step_end(self, *_, **__):
      times.append(time.perf_counter())

  given = transformers.TrainingArguments.__dataclass_fields__  # since 5 under another name
  of_length = {'train_sampling_strategy': 'group_by_length'}
  of_length = of_length if set(of_length) <= set(given) else {'group_by_length': True}
  with tempfile.TemporaryDirectory() as out:
    quiet = dict(use_cpu=True, report_to=[], save_strategy='no', disable_tqdm=True)
    quiet |= of_length if by_length else {}
    rate = config.optimizer.learning_rate
    options = transformers.TrainingArguments(
      out, per_device_train_batch_size=batch_size, max_steps=steps, learning_rate=rate, **quiet
    )
    trainer = transformers.Trainer(
      model=model, args=options, train_dataset=data, data_collator=padded, callbacks=[Clock()]
    )
    trainer.remove_callback(transformers.PrinterCallback)  # it prints to stdout, as results do
    trainer.train()
  return batch_size / statistics.mean(np.diff(times)[steps // 4 :])


def training_lines(config):
  """The lines of the metrics of a training, but for the first, which warms up."""
  with tempfile.TemporaryDirectory() as folder:
    train.train(config, folder)
    lines = [json.loads(x) for x in (Path(folder) / 'metrics.jsonl').read_text().splitlines()]
  return [line for line in lines if line['split'] == 'train'][1:]
