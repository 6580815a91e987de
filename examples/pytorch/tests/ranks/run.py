"""Makes checks of several scripts: run.py SECONDS SCRIPT:CHECK…"""

import importlib
import sys

import checks

names = sys.argv[2:]
scripts = dict.fromkeys(name.split(":")[0] for name in names)
found = {f"{script}:{one.name}": one for script in scripts for one in checks.found_in(vars(importlib.import_module(script)))}
checks.make([(name, found[name]) for name in names], float(sys.argv[1]))
