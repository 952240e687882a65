"""Sentences on a panel: what a guess scores, who beats it, and the strongest evidence."""

from collections.abc import Iterator

import pandas as pd

from bert_jax.metrics import LOSSES, REGRESSION
from bert_jax.tools.report.panels import Panel, number, probability

HARDLY = 0.02  # of the way from a guess to a perfect score


def notes(panel: Panel) -> Iterator[str]:
  """Sentences on what a guess scores, and on who beats it."""
  hardly = []
  for metric in panel.metrics:
    df = panel.final(metric)
    df = df[df['level'].notna()]
    if df.empty:
      continue
    guess = f'{number(df["level"].mean())} ({df.level_kind.iloc[0]})'
    beyond = gains(df)
    if metric == panel.metric:
      yield f'To beat: {guess}.'
      frozen = panel.final(metric + REGRESSION).value
      if len(frozen):
        level = number(frozen.mean())
        yield f'A logistic regression on the vectors of the weights before training: {level}.'
      lost = beyond[beyond <= 0].index
      if len(lost) == len(beyond):
        yield 'No arm beats a guess: nothing was learned that differences could speak of.'
      elif len(lost):
        yield f'Not beaten by {"; ".join(lost)}.'
    elif beyond.max() < HARDLY:
      best = number(panel.compared(metric)['mean'][beyond.idxmax()])
      hardly.append(f'{metric}, {best} at best, where a guess has {guess}')
  if hardly:
    yield f'What hardly leaves a guess in any arm: {"; ".join(hardly)}.'


def gains(df: pd.DataFrame) -> pd.Series:
  """How far the mean of each arm is from what a guess scores to a perfect score, as a share."""
  by_arm = df.groupby('arm', sort=False)
  means, levels = by_arm.value.mean(), by_arm['level'].mean()
  if df.level_kind.iloc[0].startswith(LOSSES):
    return (levels - means) / levels.abs()
  top = 100 if max(means.max(), levels.max()) > 1 else 1
  return (means - levels) / (top - levels)


def strongest(panel: Panel) -> str:
  """A sentence on the difference with the strongest evidence."""
  table = panel.compared(panel.metric)
  if table.p_corrected.isna().all():
    return 'No difference is tested.'
  arm = table.p_corrected.idxmin()
  row = table.to_dict('index')[arm]
  difference = number(row['difference'], '+')
  over_examples = ''
  if pd.notna(row['p_examples_low']):
    lowest, highest = probability(row['p_examples_low']), probability(row['p_examples_high'])
    over_examples = f'; over examples {lowest} to {highest}'
  return (
    f'Strongest evidence: {arm} against {panel.baseline}, {difference}, p over seeds '
    f'{probability(row["p_corrected"])}, corrected{over_examples}.'
  )
