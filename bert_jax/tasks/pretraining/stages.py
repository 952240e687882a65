"""Which masking policy holds from which step on."""

from bert_jax.errors import InputError

POLICIES = ('token', 'whole_word', 'span', 'phrase', 'entity')


def masking_stages(policy):
  """'token,phrase@1000' -> ((0, 'token'), (1000, 'phrase')): each policy and its first step."""
  stages = []
  for part in policy.split(','):
    name, at, step = part.strip().partition('@')
    if name not in POLICIES or (at and not step.isdigit()):
      raise InputError(
        f'masking.policy={policy} is not understood at {part.strip()!r}; use one of '
        f'{", ".join(POLICIES)}, or several with their first steps: token,phrase@1000,entity@2000.'
      )
    stages.append((int(step or 0), name))
  first, *later = [step for step, _ in stages]
  if first or any(a >= b for a, b in zip([0, *later], later, strict=False)):
    raise InputError(
      f'masking.policy={policy} does not begin at step 0 and go up; write it like '
      'token,phrase@1000,entity@2000.'
    )
  return tuple(stages)
