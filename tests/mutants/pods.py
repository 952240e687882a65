"""Faults put in by hand: what a step on many chips takes."""

TEST = 'tests/test_pod_estimates.py::'
GROUPS = f'{TEST}test_the_groups_of_a_collective_are_read_in_every_notation'
LINKS = f'{TEST}test_a_transfer_takes_what_its_bytes_need_on_the_links_of_its_group'
WAITED = f'{TEST}test_what_is_not_started_before_is_waited_for'
STRIDED = f'{TEST}test_groups_of_chips_that_stand_apart_share_links'
LOOPS = f'{TEST}test_pairs_of_start_and_done_hide_what_stands_between_them_in_every_turn_of_a_loop'
COLLECTIVES = 'bert_jax/tools/collectives.py'
ONCE = 'tests/test_preflight.py::test_a_program_is_compiled_once'
BEST = 'tests/test_preflight.py::test_the_best_of_a_few_compilations_is_found'

MUTANTS = [
  # (name, file, text as it stands, text with the fault, tests that must fail)
  (
    'the order of devices in a group is not turned',
    COLLECTIVES,
    'ids = ids.transpose(numbers(order)) if order else ids',
    'ids = ids if order else ids',
    GROUPS,
  ),
  (
    'both directions of the links carry the same bytes',
    COLLECTIVES,
    'return self.published.interconnect / 2 /',
    'return self.published.interconnect /',
    LINKS,
  ),
  (
    'an all-reduce crosses the links once',
    COLLECTIVES,
    "transfer.bytes * (2 if transfer.kind == 'all-reduce' else 1)",
    'transfer.bytes',
    LINKS,
  ),
  (
    'every side of a slice is a ring',
    COLLECTIVES,
    'rings = [n % published.ring == 0 for n in self.sides]',
    'rings = [True for n in self.sides]',
    LINKS,
  ),
  (
    'the network between slices costs nothing',
    COLLECTIVES,
    'return inside + share * size',
    'return inside + 0 * size',
    LINKS,
  ),
  (
    'each group has links for itself',
    COLLECTIVES,
    'one_or_two / _most(',
    'one_or_two / bool(',
    STRIDED,
  ),
  (
    'a permutation goes along the axes of its first pair',
    COLLECTIVES,
    'for group in transfer.groups:\n      positions',
    'for group in transfer.groups[:1]:\n      positions',
    STRIDED,
  ),
  (
    'messages of a permutation do not wait for one another',
    COLLECTIVES,
    'transfer.bytes * _most(self._route',
    'transfer.bytes * any(self._route',
    STRIDED,
  ),
  (
    'collectives that are not started before hide as well',
    COLLECTIVES,
    '          now = free\n',
    '          pass\n',
    WAITED,
  ),
  (
    'pieces of a collective count as collectives',
    COLLECTIVES,
    "if what != 'part':",
    'if what:',
    WAITED,
  ),
  (
    'a collective that is done is never waited for',
    COLLECTIVES,
    'now = max(now, ended)\n          continue',
    'continue',
    LOOPS,
  ),
  (
    'the collectives of a loop count once',
    COLLECTIVES,
    'self._run(called, times * trips)',
    'self._run(called, times)',
    LOOPS,
  ),
  (
    'a program with kernels has an MFU',
    'bert_jax/tools/pod_estimates.py',
    "{'estimates': {} if missing(out) else estimates}",
    "{'estimates': estimates}",
    f'{TEST}test_kernels_without_cycles_leave_no_mfu',
  ),
  (
    'a spot chip costs what the others do',
    'bert_jax/tools/pod_estimates.py',
    '[spot * dollars for',
    '[dollars for',
    f'{TEST}test_a_run_in_days_and_dollars',
  ),
  (
    'what was compiled by another compiler is taken',
    'bert_jax/tools/compilation.py',
    'json.dumps([versions(), devices',
    'json.dumps([devices',
    ONCE,
  ),
  (
    'what was compiled with other options is taken',
    'bert_jax/tools/compilation.py',
    'places, flags, options])',
    'places, flags])',
    ONCE,
  ),
  (
    'noise counts as better',
    'bert_jax/tools/preflight_best.py',
    '(1 - NOISE) * seconds(best[1])',
    'seconds(best[1])',
    BEST,
  ),
  (
    'parts only become more',
    'bert_jax/tools/preflight_best.py',
    'for numbers in (more, fewer):',
    'for numbers in (more,):',
    'tests/test_preflight.py::test_fewer_and_larger_parts_are_tried_where_they_fit',
  ),
  (
    'a mesh of its own choice goes over slices',
    'bert_jax/sharding.py',
    "(mesh['slices'] if mesh['data'] == -1 else mesh['data'])",
    "(1 if mesh['data'] == -1 else mesh['data'])",
    'tests/test_step.py::test_the_parameters_are_shared_by_up_to_sixteen_chips_of_a_slice',
  ),
]
