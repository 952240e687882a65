"""The scripts of launch/: what they would run, and that a preempted TPU is requested again."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

SCRIPTS = sorted(str(p) for p in Path('launch').iterdir() if not p.suffix)
TRAIN = ['--', '--config', 'configs/pretrain.py:size=base', '--workdir', '/data/my "runs"']
TYPE = ['--type', 'v6e-8']

# A gcloud that writes down what it is asked. `says` has what the worker says of the run, a line for
# each time it is asked; when it says "gone" there is no worker any more, and "130:SUSPENDED" is an
# answer and the state the TPU is in from then on.
GCLOUD = """
echo "$*" >> "$FAKE/calls"
case "$*" in
  *queued-resources\\ create*) echo ACTIVE > "$FAKE/state" ;;
  *describe*) cat "$FAKE/state" ;;
  *launch/attempt\\ --step*) head -n 1 "$FAKE/steps" 2> /dev/null; sed -i 1d "$FAKE/steps" ;;
  *run.exit\\ 2*)
    answer=$(head -n 1 "$FAKE/says")
    sed -i 1d "$FAKE/says"
    [ "$answer" != gone ] || { echo SUSPENDED > "$FAKE/state"; exit 1; }
    [[ $answer != *:* ]] || echo "${answer#*:}" > "$FAKE/state"
    echo "${answer%:*}"
    ;;
esac
"""


def launch(*arguments, check=True, **env):
  out = subprocess.run(
    ['bash', *arguments], env=os.environ | env, capture_output=True, text=True, timeout=60
  )
  assert not check or out.returncode == 0, out.stderr
  return out


def tpu(verb, *arguments, **options):
  """What launch/tpu says of a TPU called pod."""
  return launch('launch/tpu', verb, 'pod', *arguments, **options)


def restarted(env, *arguments, status=0):
  """What launch/tpu says of a run that it starts again, which ends with this status."""
  out = tpu('run', *arguments, '--restart', *TYPE, *TRAIN, check=False, **env)
  assert out.returncode == status, out.stderr
  return out.stderr


def program(path, script):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(f'#!/bin/bash\n{script}\n')
  path.chmod(0o755)


@pytest.mark.parametrize('script', SCRIPTS)
def test_help(script):
  out = launch(script, '--help').stdout
  assert 'usage: launch/' + Path(script).name in out and len(out) > 100


def test_shellcheck():
  if not (program := shutil.which('shellcheck')):
    pytest.skip('shellcheck is not installed')
  out = subprocess.run([program, *SCRIPTS], capture_output=True, text=True)
  assert out.returncode == 0, out.stdout


def test_tpu_shows_its_commands():
  says = lambda verb, *arguments: tpu(verb, '--dry-run', *arguments).stderr.replace('\\', '')
  assert says('create', *TYPE).startswith('+ gcloud compute tpus tpu-vm create pod ')
  said = says('create', *['--type', 'v6e-16', '--spot', '--slices', '2', '--zone', 'z'])
  assert 'queued-resources create pod-request --zone=z --node-count=2 --node-prefix=pod' in said
  assert '--runtime-version=v2-alpha-tpuv6e --spot' in said
  for verb in ('setup', 'sync', 'logs', 'attach', 'status', 'stop', 'delete'):
    assert '+ gcloud' in says(verb), verb
  commit = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, text=True).stdout
  said = says('sync')
  assert f'echo {commit.strip()}' in said and '> bert_jax/.commit' in said  # which run.json names
  said = says('run', '--slices', '2', *TRAIN)
  assert said.count('bert_jax.train') == 3 and said.count('--worker=all') == 2  # once to read
  mount = 'gcsfuse --implicit-dirs --rename-dir-limit=100000 my-b /mnt/my-b'
  assert mount in says('setup', '--bucket', 'my-b') and 'gcsfuse' not in says('setup')


def test_tpu_says_what_to_look_at_before_it_costs_money():
  workdir = ['--config=configs/pretrain.py:size=base', '--workdir', '/mnt/my-b/W']
  run = lambda *more: (
    tpu('run', '--dry-run', '--bucket', 'my-b', *TYPE, '--', *workdir, *more).stderr
  )
  said = run('--config.data.train=/data/D', '--config.batch_size=512')
  assert 'note: is data.train, /data/D, on every worker?' in said
  fields = '--config=configs/pretrain.py:size=base --config.batch_size=512'
  assert f'tools.preflight --topology {TYPE[1]} {fields}\n' in said
  said = run('--config.data.train=/mnt/my-b/D', '--config.data.eval=tfds:x/y')
  assert 'on every worker?' not in said


def test_a_wrong_config_is_said_before_it_costs_money(tmp_path):
  program(tmp_path / 'python3', f'exec {sys.executable} "$@"')
  env = {'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
  out = tpu('run', '--dry-run', *TRAIN, '--config.batch_sise=4', check=False, **env)
  assert out.returncode == 2 and 'did you mean' in out.stderr and 'gcloud' not in out.stderr
  assert '+ gcloud' in tpu('run', '--dry-run', *TRAIN, '--config.batch_size=4', **env).stderr


# {a command: what its refusal says}. TRAIN stands for a run.
MISTAKES = {
  'tpu destroy x': 'destroy is no verb',
  'tpu create': 'NAME is missing',
  'tpu run x --dry-run': 'say what to run',
  'tpu create x --dry-run --sopt': '--sopt is not known',
  'tpu create x --dry-run --slices two': 'not a number of slices',
  'tpu create x --dry-run --type v9-8': 'v9-8 is not known; there are',
  'tpu create x --dry-run --type v6e-17': 'v6e-17 is not known',
  'tpu create x --dry-run --type v4-12': 'v4-12 is not known',
  'slurm': 'say what to run',
  'attempt true': 'there is no --workdir',
  'tpu create x --dry-run': '--type is missing',
  'tpu run x --dry-run --restart TRAIN': '--type is missing',
  'tpu run x --dry-run --bucket my-b TRAIN': 'not in the bucket: /mnt/my-b/',
  'tpu run x --dry-run -- --config c --workdir gs://b/W': 'and name a folder in /mnt/NAME',
  'tpu run x --dry-run TRAIN --config.data.train=gs://b': 'in /mnt/NAME',
  'gke --image i -- --config c --workdir gs://b': 'one in /data',
  'tpu create x --type --dry-run': '--type needs a value',
  'tpu setup x --dry-run --bucket gs://b': 'without gs:',
  'tpu create x --dry-run --type v5e:4x4': 'v5e:4x4 is v5litepod-16',
  'tpu create My --dry-run': 'My is no name of a TPU',
  'tpu create x --dry-run --type v6e-8 --restart': 'only run takes --restart',
  'tpu run x --dry-run -- --config c': 'say what to run',
  'tpu run x --dry-run TRAIN --config.mesh.slices=2': '--slices before',
  "slurm --name 'a b' TRAIN": 'has blanks',
  "slurm --time '1 day' TRAIN": '--time 1 day is not like',
  'gke TRAIN': '--image is missing',
  'gke --image i --topology 3x3 TRAIN': 'does not divide',
  'gke --image i --topology 0x4 TRAIN': 'is not like 4x4',
  'gke --image i --accelerator v5e TRAIN': 'v5e is not known; use tpu-',
  'gke --image i --accelerator tpu-v4-podslice TRAIN': 'of 3 sides',
  "gke --image i --claim 'C d' TRAIN": 'C d is no name of a volume claim',
  "gke --image 'a: b' TRAIN": 'a: b is no image',
  'local --processes 0': '0 is not a number',
  'local -- x': 'PYTHON=no/python is no program',
}


@pytest.mark.parametrize('command', MISTAKES)
def test_mistakes_are_sentences(command):
  words = [y for x in shlex.split(f'launch/{command}') for y in (TRAIN if x == 'TRAIN' else [x])]
  out = launch(*words, check=False, PYTHON='no/python')
  assert out.returncode == 2 and out.stderr.startswith('error: ')
  assert MISTAKES[command] in out.stderr and len(out.stderr.splitlines()) == 1


@pytest.fixture
def gcloud(tmp_path):
  """(environment with a fake gcloud, its folder)."""
  program(tmp_path / 'bin' / 'gcloud', GCLOUD)
  (tmp_path / 'state').write_text('ACTIVE\n')
  path = f'{tmp_path / "bin"}:{os.environ["PATH"]}'
  return {'PATH': path, 'FAKE': str(tmp_path), 'POLL_SECONDS': '0'}, tmp_path


def test_a_preempted_tpu_is_requested_again(gcloud):
  env, folder = gcloud
  (folder / 'says').write_text('running\nrunning\ngone\nrunning\n1\nrunning\n0\n')
  said, calls = restarted(env, '--spot'), (folder / 'calls').read_text()
  assert 'requesting it again' in said and 'the run has ended (0)' in said
  assert calls.count('queued-resources delete pod-request') == 1
  assert calls.count('queued-resources create pod-request') == 1
  assert calls.count('tpu-vm scp') == 1  # the new VMs get the code
  assert calls.count('rm -f run.exit') == 3  # a start: at first, on the new VMs, after the failure
  order = [calls.index(x) for x in ('delete pod', 'create pod', 'tpu-vm scp', 'pip install')]
  assert order == sorted(order)


@pytest.mark.parametrize('ending', ['130', '3', 'lost'])
def test_a_run_that_loses_a_slice_goes_on(ending, gcloud):
  """Worker 0 of the first slice is there, and what it says is how a run ends that loses another."""
  env, folder = gcloud
  (folder / 'says').write_text(f'running\n{ending}:SUSPENDED\nrunning\n{ending}\nrunning\n0\n')
  said, calls = restarted(env, '--slices', '2'), (folder / 'calls').read_text()
  assert 'the TPU is gone (SUSPENDED); requesting it again' in said
  assert f'the run ended as {ending}; starting it again' in said
  assert 'the run has ended (0)' in said
  assert calls.count('queued-resources delete') == calls.count('queued-resources create') == 1
  assert calls.count('rm -f run.exit') == 6  # three starts on two slices
  assert calls.index('delete pod') < calls.index('create pod') < calls.index('tpu-vm scp')


def test_a_run_that_was_asked_to_stop_stays_stopped(gcloud):
  env, folder = gcloud
  (folder / 'says').write_text('running\n130 stopped\n')
  said = restarted(env, '--slices', '2', status=130)
  assert 'the run has ended (130 stopped)' in said
  assert (folder / 'calls').read_text().count('rm -f run.exit run.stopped') == 2


def test_a_run_that_fails_again_and_again_ends(gcloud):
  env, folder = gcloud
  (folder / 'says').write_text('1\n1\n1\n1\n')
  assert 'failed three times (1)' in restarted(env, status=2)
  (folder / 'says').write_text('2\n')  # what it is asked for is wrong: once is enough
  assert 'the run has ended (2)' in restarted(env, status=2)


def sent(folder, what):
  """The command that gcloud was given for a worker, which holds these words."""
  (line,) = [x for x in (folder / 'calls').read_text().splitlines() if what in x]
  return line.partition('--command=')[2]


def test_the_line_arrives_on_the_workers_as_it_was_typed(gcloud, tmp_path):
  """What ssh would run is run here, with a python that writes down its arguments."""
  env, folder = gcloud
  tpu('run', *TRAIN, **env)
  home = tmp_path / 'home'
  program(home / 'bert_jax/.venv/bin/python', 'for x; do echo "$x"; done > arguments')
  subprocess.run(['bash', '-c', sent(folder, 'bert_jax.train')], cwd=home, check=True)
  got = home / 'bert_jax' / 'run.exit'
  for _ in range(100):
    if got.exists() and got.read_text().strip():
      break
    subprocess.run(['sleep', '0.1'])
  assert got.read_text().strip() == '0'
  arguments = (home / 'bert_jax' / 'arguments').read_text().splitlines()
  assert arguments == ['-m', 'bert_jax.train', '--distributed', *TRAIN[1:]]


def test_the_run_is_found_and_not_the_shell_that_asks(gcloud, tmp_path):
  """What the worker is asked is run here, beside a process that is named as a run is."""
  env, folder = gcloud
  (folder / 'says').write_text('running\n')
  for verb, *arguments in (['status'], ['stop'], ['run', *TRAIN]):
    tpu(verb, *arguments, **env)
  lines = [line for line in (folder / 'calls').read_text().splitlines() if '--command=' in line]
  ask, stop, start = (line.partition('--command=')[2] for line in lines)
  home = tmp_path / 'home'
  python = home / 'bert_jax' / '.venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)

  def worker(command):
    out = subprocess.run(['bash', '-c', command], cwd=home, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()

  assert worker(ask) == 'lost' and worker(stop) == 'nothing runs'
  assert worker(ask) == 'lost stopped'
  python.symlink_to(sys.executable)
  (home / 'bert_jax' / 'bert_jax').mkdir()
  (home / 'bert_jax' / 'bert_jax' / 'train.py').write_text('import time; time.sleep(60)')
  run = subprocess.Popen(
    ['.venv/bin/python', '-m', 'bert_jax.train'],
    cwd=home / 'bert_jax',
    env={'PATH': os.environ['PATH']},
  )
  try:
    second = subprocess.run(['bash', '-c', start], cwd=home, capture_output=True, text=True)
    assert second.returncode == 1 and 'a run is going; launch/tpu stop pod first' in second.stderr
    assert worker(ask) == 'running' and worker(stop) == 'asked to save and end'
    assert run.wait(timeout=20) == -15
  finally:
    run.kill()
  (home / 'bert_jax' / 'run.exit').write_text('130\n')
  assert worker(ask) == '130 stopped'
  (home / 'bert_jax' / 'run.stopped').unlink()
  assert worker(ask) == '130'


def test_a_run_that_fails_at_other_steps_goes_on(gcloud):
  env, folder = gcloud
  (folder / 'says').write_text('1\n' * 4 + '0\n')
  (folder / 'steps').write_text('10\n10\n20\n30\n')
  said = restarted(env)
  assert said.count('starting it again') == 4 and 'the run has ended (0)' in said
  (folder / 'says').write_text('3\n1\n1\n0\n')  # that max_hours are over is no failure
  (folder / 'steps').write_text('30\n30\n30\n')
  assert 'the run has ended (0)' in restarted(env)
  (folder / 'says').write_text('1\n' * 4)
  (folder / 'steps').write_text('30\n40\n40\n40\n')
  assert 'failed three times (1) at step 40' in restarted(env, status=2)


def test_it_waits_before_it_starts_a_run_that_failed_twice(gcloud):
  env, folder = gcloud
  program(folder / 'bin' / 'sleep', 'echo "$1" >> "$FAKE/slept"')
  (folder / 'says').write_text('1\n1\n1\n')
  restarted(env | {'POLL_SECONDS': '60'}, status=2)
  assert (folder / 'slept').read_text().split() == ['60', '0', '60', '120', '60']  # 60: polls


def test_the_step_is_looked_for_in_the_home_folder(gcloud):
  env, folder = gcloud
  (folder / 'says').write_text('1\n0\n')
  asked = ['--', '--config', 'c', '--workdir', '~/W']
  tpu('run', '--restart', *TYPE, *asked, **env)
  home = folder / 'home'
  for step in '4', '12', '12.orbax-checkpoint-tmp':
    (home / 'W' / 'checkpoints' / step).mkdir(parents=True)
  shutil.copytree('launch', home / 'bert_jax' / 'launch')
  command, env = ['bash', '-c', sent(folder, 'attempt --step')], os.environ | {'HOME': str(home)}
  assert subprocess.run(command, cwd=home, env=env, capture_output=True).stdout == b'12\n'


def test_packages_arrive_as_words(gcloud, tmp_path):
  """What ssh would run is run here: `>=` is no redirection, and a second package is a word too."""
  env, folder = gcloud
  tpu('setup', '--extra', 'jieba>=0.42 pkg[all]', **env)
  home = tmp_path / 'home'
  for name in ('bert_jax/.venv/bin/python', 'python3'):
    program(home / name, 'for x; do echo "$x"; done > "$HOME/words"')
  env = os.environ | {'HOME': str(home), 'PATH': f'{home}:{os.environ["PATH"]}'}
  subprocess.run(['bash', '-c', sent(folder, 'pip install')], cwd=home, check=True, env=env)
  assert (home / 'words').read_text().splitlines()[-3:] == ['jax[tpu]', 'jieba>=0.42', 'pkg[all]']
  assert not list(home.rglob('*0.42*'))


def attempt(folder, script, *flags, **env):
  """launch/attempt of a shell script that is given the workdir; $n is how often it was run."""
  count = 'n=$(($(cat "$2/count" 2> /dev/null || echo 0) + 1)); mkdir -p "$2"; echo $n > "$2/count"'
  words = ['bash', '-c', f'{count}\n{script}', '--workdir', '--workdir', str(folder)]
  env = {'BACKOFF_SECONDS': '0'} | env
  return launch('launch/attempt', *flags, *words, check=False, **env)


def test_a_run_is_tried_again_until_it_crashes_at_the_same_step(tmp_path):
  out = attempt(tmp_path / 'a', 'exit 1', '--again', ATTEMPTS='3')
  assert out.returncode == 2 and 'crashed 3 times at step 0, at last with status 1' in out.stderr
  assert (tmp_path / 'a' / 'count').read_text() == '3\n'
  out = attempt(
    tmp_path / 'b', 'mkdir -p "$2/checkpoints/$n"; [ $n = 7 ] || exit 137', '--again', ATTEMPTS='3'
  )
  assert out.returncode == 0 and out.stderr.count('starting it again') == 6
  script = '[ $n = 7 ] || { mkdir -p "$2/checkpoints/$n"; exit 3; }'  # max_hours: saved each time
  out = attempt(tmp_path / 'c', script, '--again', ATTEMPTS='1')
  assert out.returncode == 0 and out.stderr.count('starting it again') == 6
  assert 'waiting' not in out.stderr and not (tmp_path / 'c' / 'crashes').exists()
  for code in ('2', '130'):  # a wrong input, a stop
    out = attempt(tmp_path / code, f'exit {code}', '--again')
    assert out.returncode == int(code) and (tmp_path / code / 'count').read_text() == '1\n'


def test_crashes_are_remembered_from_one_machine_to_the_next(tmp_path):
  codes = [attempt(tmp_path / 'w', 'exit 3', ATTEMPTS='3').returncode for _ in range(4)]
  assert codes == [3, 3, 2, 3]  # after giving up, it begins anew
  env = {'ATTEMPTS': '2', 'JOB_COMPLETION_INDEX': '1'}
  codes = [attempt(tmp_path / 'v', 'exit 3', **env).returncode for _ in range(4)]
  assert codes == [3] * 4  # the first host counts


def test_it_waits_longer_each_time(tmp_path):
  program(tmp_path / 'sleep', 'echo "slept $1" >&2')
  path = f'{tmp_path}:{os.environ["PATH"]}'
  out = attempt(tmp_path / 'w', 'exit 1', '--again', BACKOFF_SECONDS='', PATH=path)
  slept = [line.split()[1] for line in out.stderr.splitlines() if line.startswith('slept')]
  assert slept == ['10', '20', '40', '80']


def test_a_signal_goes_on_to_the_run(tmp_path):
  script = 'trap "exit 130" TERM; touch "$2/up"; for i in $(seq 300); do sleep 0.1; done'
  (tmp_path / 'w').mkdir()
  words = ['bash', '-c', script, 'x', '--workdir', str(tmp_path / 'w')]
  process = subprocess.Popen(['bash', 'launch/attempt', '--again', *words])
  while not (tmp_path / 'w' / 'up').exists():
    time.sleep(0.05)
  process.terminate()
  assert process.wait(timeout=20) == 130


def test_slurm_script(tmp_path):
  script = launch('launch/slurm', '--nodes', '2', '--gpus', '4', '--dry-run', *TRAIN).stdout
  assert '#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n' in script
  program(tmp_path / 'srun', 'for x; do echo "$x"; done\nexit 130')
  program(tmp_path / 'scontrol', 'echo scontrol "$@"')
  path = f'{tmp_path}:{os.environ["PATH"]}'
  (tmp_path / 'script').write_text(script)
  out = launch(str(tmp_path / 'script'), check=False, PATH=path, SLURM_JOB_ID='7')
  assert out.returncode == 130
  said = out.stdout.splitlines()
  assert said[0] == '--cpus-per-task=8'
  assert said[2:] == ['-m', 'bert_jax.train', *TRAIN[1:], 'scontrol requeue 7']


def test_gke_manifest():
  options = ['--image', 'I', '--topology', '4x4', '--slices', '2', '--claim', 'c']
  out = launch('launch/gke', *options, *TRAIN).stdout
  spec = yaml.safe_load(out)['spec']['replicatedJobs'][0]
  assert spec['replicas'] == 2 and spec['template']['spec']['parallelism'] == 4
  pod = spec['template']['spec']['template']['spec']
  (container,) = pod['containers']
  command = ['bash', 'launch/attempt', 'python', '-m', 'bert_jax.train', '--distributed']
  assert container['command'] == [*command, *TRAIN[1:], '--config.mesh.slices=2']
  assert container['resources']['limits'] == {'google.com/tpu': 4}
  assert pod['volumes'][0]['persistentVolumeClaim']['claimName'] == 'c'
