"""The scripts of launch/: what they would run, and how they end when something fails."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from conftest import ROOT

from bert_jax.workdir import saved_steps

SCRIPTS = sorted(str(p) for p in Path('launch').iterdir() if not p.suffix)
TRAIN = ['--', '--config', 'configs/pretrain.py:size=base', '--workdir', '/data/my "runs"']
TYPE = ['--type', 'v6e-8']
WORKERS = 5

# A gcloud that writes down what it is asked, and plays a TPU in the folder $FAKE. `state` is the
# state of the request (and behind a tab its type), and `states` has a line for each of the next
# times that it is asked for: "silent" is a gcloud that does not answer, "none" that there is no
# request. `vm` is the state of a TPU without a request. `broken` has lines such as "3 pip": worker
# 3 fails at a command that holds this word. A command with the word in `hangs` does not end. If
# there is a file `refuses`, or `stuck`, the request or its deletion fails. `defaults` are gcloud's
# own zone and project. `type` is that of the TPU. `ended` is what a worker says of a run.
GCLOUD = rf"""
echo "$*" >> "$FAKE/calls"
fails() {{ echo "ERROR: (gcloud) $1" >&2; exit 1; }}
if [ -e "$FAKE/hangs" ] && [[ $* = *"$(cat "$FAKE/hangs")"* ]]; then
  [[ $* != *scp* ]] || trap 'sleep 0.3; [ ! -s "$5" ] || echo kept >> "$FAKE/kept"; exit 1' TERM
  sleep 60 &
  echo $$ $! >> "$FAKE/pids"
  wait
fi
case "$*" in
  config\ list*) cat "$FAKE/defaults" ;;
  *queued-resources*pod-request*)
    [ ! -e "$FAKE/vm" ] || fails NOT_FOUND ;;&
  *queued-resources\ describe*)
    if [ -s "$FAKE/states" ]; then
      head -n 1 "$FAKE/states" > "$FAKE/state"
      sed -i 1d "$FAKE/states"
    fi
    case $(cat "$FAKE/state") in
      silent) fails 'the network is unreachable' ;;
      none) fails 'NOT_FOUND: Resource projects/p/queuedResources/pod-request was not found' ;;
      *) cat "$FAKE/state"; echo 'WARNING: a new version of gcloud' >&2 ;;
    esac
    ;;
  *queued-resources\ create*)
    [ ! -e "$FAKE/refuses" ] || fails "Quota limit 'TPUV6EPerProjectPerZone' has been exceeded"
    echo ACCEPTED > "$FAKE/state"
    ;;
  *queued-resources\ delete*)
    [ ! -e "$FAKE/stuck" ] || fails 'internal error'
    [ "$(cat "$FAKE/state")" != none ] || fails NOT_FOUND
    echo none > "$FAKE/state"
    ;;
  *tpu-vm\ delete*) rm "$FAKE/vm" 2> /dev/null || fails NOT_FOUND ;;
  *networkEndpoints*)
    [ "$(cut -f 1 "$FAKE/state")" = ACTIVE ] || fails NOT_FOUND
    printf 'READY\t{WORKERS}\t%s\n' "$(cat "$FAKE/type" 2> /dev/null || echo v6e-8)"
    ;;
  *tpu-vm\ describe*) cat "$FAKE/vm" 2> /dev/null || fails NOT_FOUND ;;
  *scp*) cp "$5" "$FAKE/code.tgz" ;;
  *run.exit\ ]*) cat "$FAKE/ended" 2> /dev/null ;;
esac
while read -r worker word; do
  [[ "$* " != *"--worker=$worker "* || $* != *"$word"* ]] || fails 'ssh exited with code [255]'
done < "$FAKE/broken"
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
  said = says('create', *['--type', 'v6e-16', '--spot', '--zone', 'z', '--project', 'p'])
  assert said.startswith('+ gcloud compute tpus queued-resources create pod-request --node-id=pod ')
  assert '--runtime-version=v2-alpha-tpuv6e --spot --zone=z --project=p' in said
  assert '--accelerator-type=v5litepod-64' in says('create', '--type', 'v5e-64')
  commit = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True, text=True).stdout
  assert f'echo {commit.strip()}' in says('setup')  # which run.json names
  assert 'note: --workdir is not in a bucket (gs://); is it on' in says('run', *TRAIN)
  in_bucket = ['--', '--config=configs/pretrain.py', '--workdir=gs://b/W']
  said = says('run', *in_bucket, '--config.data.train=gs://b/D').partition('+')[0]
  assert 'workdir' not in said and 'data.train' not in said
  on_disk = says('run', *in_bucket, '--config.data.train=D')
  assert 'note: --config.data.train is not in a bucket' in on_disk
  by_language = '--config.data.train=en=gs://b/en,de=gs://b/de'
  assert 'data.train is not' not in says('run', *in_bucket, by_language).partition('+')[0]
  assert 'note: without --config.data.train a run reads' in says('run', *in_bucket)


def test_a_wrong_config_is_said_before_it_costs_money(gcloud):
  env, folder = gcloud
  env |= {'PYTHON': sys.executable}
  out = tpu('run', '--dry-run', *TRAIN, '--config.batch_sise=4', check=False, **env)
  assert out.returncode == 2 and 'did you mean' in out.stderr and 'gcloud' not in out.stderr
  (folder / 'type').write_text('v4-48')  # 24 chips
  out = tpu('run', '--zone', 'z', *TRAIN, '--config.batch_size=56', check=False, **env)
  assert out.returncode == 2 and out.stderr.splitlines()[-1] == BILLED
  assert (
    'error: batch_size 56 does not divide over 24 data shards in 1 microbatches; use a multiple of'
    in out.stderr
  )
  assert ' ssh ' not in (folder / 'calls').read_text()


# {a command: what its refusal says}. TRAIN stands for a run.
MISTAKES = {
  'tpu': 'is no verb; use create',
  'tpu destroy x': 'destroy is no verb',
  'tpu create': 'NAME is missing',
  'tpu create My --dry-run': 'not of small letters',
  'tpu create x --dry-run': '--type (none is given) is not known',
  'tpu create x --dry-run --sopt': '--sopt is not known',
  'tpu create x --dry-run --type v9-8': 'v9-8 is not known; there are',
  'tpu create x --dry-run --type v6e-17': 'v6e-17 is not known',
  'tpu create x --dry-run --type v5e:4x4': 'v5e:4x4 is v5litepod-16',
  'tpu create x --dry-run --type v4-12': 'v4-12 is not known',
  'tpu create x --dry-run --type v5p-9': 'N cores, a multiple of 8',
  'tpu create x --type --dry-run': '--type needs a value',
  'tpu run x --restart': 'launch/sky.yaml or launch/gke',
  'tpu run x --config c --workdir gs://b/W': 'is for bert_jax.train stands after --',
  'tpu status x --extra b': '--extra is an option of setup, not of status',
  'tpu setup x --bucket b': '--bucket is not known',
  'tpu setup x --spot': '--spot is an option of create, not of setup',
  'tpu run x --dry-run -- --config=configs/my.py --workdir gs://b/W': 'is it spelt so?',
  'tpu setup x --dry-run TRAIN': 'only run takes arguments',
  'tpu run x --dry-run': 'say what to run',
  'tpu run x --dry-run -- --config c': 'say what to run',
  'slurm': 'say what to run',
  'attempt true': 'there is no --workdir',
  "slurm --name 'a b' TRAIN": 'has blanks',
  "slurm --time '1 day' TRAIN": '--time 1 day is not like',
  'gke TRAIN': '--image is missing',
  'gke --image i --topology 4x5 TRAIN': 'there is no slice of 4x5 of tpu-v5-lite-podslice; there',
  'gke --image i --accelerator tpu-v4-podslice --topology 3x3x3 TRAIN': 'does not divide',
  'gke --image i --topology 0x4 TRAIN': 'is not like 4x4',
  'gke --image i --chips 8 TRAIN': '--chips 8 does not go with 4x4 of tpu-v5-lite-podslice: hosts',
  'gke --image i --chips 8 --accelerator tpu-v5p-slice --topology 2x2x2 TRAIN': 'does not go with',
  'gke --image i --accelerator v5e TRAIN': 'v5e is not known; use tpu-',
  'gke --image i --accelerator tpu-v4-podslice TRAIN': 'of 3 sides',
  "gke --image i --claim 'C d' TRAIN": 'C d is no name of a volume claim',
  'gke --image i --slices 2 --topology 2x2 TRAIN': 'joins slices of several hosts only',
  'gke --image i --slices 2 --accelerator tpu-v3-slice TRAIN': 'and none of v3',
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
  """(environment with a fake gcloud, its folder): the TPU is there."""
  program(tmp_path / 'bin' / 'gcloud', GCLOUD)
  (tmp_path / 'state').write_text('ACTIVE\n')
  (tmp_path / 'broken').touch()
  (tmp_path / 'defaults').write_text('z,\n')
  path = f'{tmp_path / "bin"}:{os.environ["PATH"]}'
  # `false` is a python without jax.
  env = {'PATH': path, 'FAKE': str(tmp_path), 'POLL_SECONDS': '0', 'PYTHON': 'false'}
  return env, tmp_path


BILLED = 'pod is billed until you give it back: launch/tpu delete pod --zone=z'
NOTHING = 'there is no TPU pod and no request for one in zone z: nothing of it is billed there '
NOTHING += '(a bucket is)'


def test_a_run_that_does_not_start_everywhere_is_ended_and_one_that_is_going_is_not(gcloud):
  env, folder = gcloud
  (folder / 'broken').write_text('2 nohup\n')
  tpu('run', *TRAIN, check=False, **env)
  asked = [x for x in (folder / 'calls').read_text().splitlines() if ' ssh ' in x]
  assert [sum(word in x for x in asked) for word in ('nohup', 'pkill')] == [5, 5]
  (folder / 'broken').write_text('2 pgrep\n')
  (folder / 'calls').unlink()
  tpu('run', *TRAIN, check=False, **env)
  assert 'nohup' not in (calls := (folder / 'calls').read_text()) and 'pkill' not in calls
  assert 'error: nothing was copied: worker 2 of 5' in tpu('setup', check=False, **env).stderr
  assert ' scp ' not in (folder / 'calls').read_text()


def sent(folder, what):
  """The command that gcloud was given for every worker, which holds these words."""
  lines = [x for x in (folder / 'calls').read_text().splitlines() if what in x]
  assert sorted(int(x.partition('--worker=')[2].split()[0]) for x in lines) == [*range(WORKERS)]
  (command,) = {x.partition('--command=')[2].removesuffix(' --zone=z') for x in lines}
  return command


def test_the_line_arrives_on_the_workers_as_it_was_typed(gcloud, tmp_path):
  """What ssh would run is run here, with a python that writes down its arguments."""
  env, folder = gcloud
  tpu('run', *TRAIN, **env)
  home = tmp_path / 'home'
  program(home / 'bert_jax/.venv/bin/python', 'for x; do echo "$x"; done > arguments')
  subprocess.run(['bash', '-c', sent(folder, 'nohup')], cwd=home, check=True)
  got = home / 'bert_jax' / 'run.exit'
  for _ in range(100):
    if got.exists() and got.read_text().strip():
      break
    time.sleep(0.1)
  assert got.read_text().strip() == '0'
  arguments = (home / 'bert_jax' / 'arguments').read_text().splitlines()
  assert arguments == ['-m', 'bert_jax.train', '--distributed', *TRAIN[1:]]


def test_a_process_that_is_killed_is_named(tmp_path):
  """The status is of the first that has failed; 130, of a run that was stopped, is no signal."""
  ends = (
    '[ "$1" != -c ] || exit 0\n[ "$JAX_PROCESS_ID" = 0 ] || { sleep 0.3; kill -9 $$; }\nexit $CODE'
  )
  program(tmp_path / 'python', ends)
  for code, status in ((0, 137), (3, 3), (130, 130)):
    sizes, env = ['--processes', '2', '--'], {'PYTHON': str(tmp_path / 'python'), 'CODE': str(code)}
    out = launch('launch/local', *sizes, check=False, **env)
    assert (out.returncode, out.stderr) == (status, 'process 1 of 2 was ended by SIGKILL\n')


def attempt(folder, script, *flags, **env):
  """launch/attempt of a shell script that is given the workdir; $n is how often it was run."""
  count = 'n=$(($(cat "$2/count" 2> /dev/null || echo 0) + 1)); mkdir -p "$2"; echo $n > "$2/count"'
  words = ['bash', '-c', f'{count}\n{script}', '--workdir', '--workdir', str(folder)]
  env = {'BACKOFF_SECONDS': '0', 'OTHERS_SECONDS': '0'} | env
  return launch('launch/attempt', *flags, *words, check=False, **env)


def test_a_run_is_tried_again_until_it_crashes_at_the_same_step(tmp_path):
  out = attempt(tmp_path / 'a', 'exit 1', '--again', ATTEMPTS='3')
  assert out.returncode == 2 and 'crashed 3 times at step 0, at last with status 1' in out.stderr
  assert (tmp_path / 'a' / 'count').read_text() == '3\n'
  script = 'mkdir -p "$2/checkpoints/$n"; [ $n = 7 ] || exit 137'
  out = attempt(tmp_path / 'b', script, '--again', ATTEMPTS='3')
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
  assert codes == [3, 3, 3, 2]
  assert attempt(tmp_path / 'w', 'exit 3', ATTEMPTS='3').returncode == 3  # it begins anew
  env = {'ATTEMPTS': '2', 'JOB_COMPLETION_INDEX': '1'}
  codes = [attempt(tmp_path / 'v', 'exit 3', **env).returncode for _ in range(4)]
  assert codes == [3] * 4  # the first host counts
  for code in ('0', '2', '130'):  # no crash leaves none, however often
    codes = [attempt(tmp_path / code, f'exit {code}', ATTEMPTS='2').returncode for _ in range(4)]
    assert codes == [int(code)] * 4 and not (tmp_path / code / 'crashes').exists()


def test_crashes_in_a_bucket_are_counted_there(tmp_path):
  """By a python that knows a fake bucket; the next try is on another machine."""
  store = tmp_path / 'store'
  store.mkdir()
  begin = "import sys; sys.path.append('tests'); import fake_bucket"
  knows = f'exec "$REAL" -c "{begin}\n$2" "${{@:3}}"'
  program(tmp_path / 'python', knows)
  env = {'PYTHON': str(tmp_path / 'python'), 'REAL': sys.executable, 'FAKE_BUCKET': str(store)}
  env |= {'ATTEMPTS': '1', 'BACKOFF_SECONDS': '0', 'PYTHONPATH': ''}

  def tried(script, step='7', **more):
    for key in store.glob('*checkpoints*'):
      key.unlink()
    (store / quote('b/W/checkpoints/99/meta', safe='')).touch()  # whose upload was cut off
    note = f'b/W/checkpoints/{step}/{saved_steps.NOTE}'
    (store / quote(note, safe='')).write_text('{"commit_timestamp_nsecs": 5}')
    words = ['bash', '-c', script, '-', '--workdir', 'az://b/W/']
    return launch('launch/attempt', *words, check=False, **env | more)

  crashes = store / quote('b/W/crashes', safe='')
  assert tried('kill -9 $PPID').returncode == -9 and crashes.read_text().startswith('7 killed ')
  out = tried('exit 1')
  said = 'crashed 1 times at step 7, at last with status killed'
  assert out.returncode == 2 and said in out.stderr
  assert not crashes.exists()
  out = tried('exit 5', '12')
  assert out.returncode == 5 and crashes.read_text().startswith('12 5 ')
  assert crashes.read_text().count('\n') == 1


def test_it_waits_longer_each_time_and_for_what_the_first_host_says(tmp_path):
  program(tmp_path / 'sleep', 'echo "slept $1" >&2')
  env = {'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'BACKOFF_SECONDS': ''}
  slept = lambda out: [x.split()[1] for x in out.stderr.splitlines() if x.startswith('slept')]
  assert slept(attempt(tmp_path / 'w', 'exit 1', '--again', **env)) == ['10', '20', '40', '80']
  env |= {'OTHERS_SECONDS': '', 'SKYPILOT_NODE_RANK': '1'}
  assert slept(attempt(tmp_path / 'w', 'exit 3', **env)) == ['30']


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_goes_on_to_the_run(number, tmp_path):
  script = 'trap "exit 130" TERM; touch "$2/up"; for i in $(seq 300); do sleep 0.1; done'
  (tmp_path / 'w').mkdir()
  words = ['bash', '-c', script, 'x', '--workdir', str(tmp_path / 'w')]
  usual = lambda: signal.signal(number, signal.SIG_DFL)  # as not under nohup
  process = subprocess.Popen(['bash', 'launch/attempt', '--again', *words], preexec_fn=usual)
  while not (tmp_path / 'w' / 'up').exists():
    time.sleep(0.05)
  process.send_signal(number)
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


def test_an_environment_imports_bert_jax_from_any_folder(tmp_path):
  venv, none = tmp_path / 'venv', tmp_path / 'none.txt'
  subprocess.run([sys.executable, '-m', 'venv', '--without-pip', venv], check=True)
  none.touch()
  with_pip = {'VENV': str(venv), 'PYTHONPATH': sysconfig.get_path('purelib')}
  python = launch('launch/venv', str(none), **with_pip).stdout.strip()
  program = 'import importlib.util as u; print(u.find_spec("bert_jax").origin)'
  env = {k: x for k, x in os.environ.items() if k != 'PYTHONPATH'}
  out = subprocess.run(
    [python, '-c', program], cwd=tmp_path, env=env, capture_output=True, text=True
  )
  assert out.stdout.strip() == str(ROOT / 'bert_jax' / '__init__.py'), out.stderr


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


def test_commands_of_the_readme_against_a_gcloud_that_plays(gcloud):
  """Those for a TPU by hand, as they stand, one after the other; and the job's variables."""
  env, folder = gcloud
  (folder / 'state').write_text('none\n')
  (folder / 'states').write_text('none\nWAITING_FOR_RESOURCES\nPROVISIONING\nACTIVE\n')
  text = Path('launch/README.md').read_text().replace('\\\n', ' ')
  (folder / 'ended').write_text('ended with exit status 0\n')
  lines = re.findall(r'^(?:until |while )?bash launch/tpu (?:.*going = 1 }\n)?.*', text, re.M)
  verbs = [line.partition('launch/tpu ')[2].split()[0] for line in lines]
  assert verbs[:3] == ['create', 'setup', 'run'] and verbs[-1] == 'delete'
  how = {'env': os.environ | env, 'capture_output': True, 'text': True, 'timeout': 60}
  for line in lines:
    out = subprocess.run(line, shell=True, **how)
    assert out.returncode == 0, out.stderr
  assert out.stderr.splitlines()[-1] == NOTHING
  (folder / 'state').write_text('ACTIVE\n')
  running = 'running, silent for 3 seconds\n'  # while one that has ended waits for its machine
  (folder / 'ended').write_text(f'ended with exit status 0\n{running}')
  (waits,) = (line.replace('sleep 60', 'exit 7') for line in lines if line[0] == 'u')
  out = subprocess.run(waits, shell=True, **how)
  assert out.returncode == 7 and BILLED in out.stderr  # and what is wrong, if it waits for ever
  (folder / 'ended').write_text('no run is going, and none has ended by itself\n')
  assert subprocess.run(waits, shell=True, **how).returncode == 0  # its machine was started anew
