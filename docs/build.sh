#!/usr/bin/env bash
# Builds the site of these pages and of the comments in the headers, and checks them.
#
#   bash docs/build.sh [--check-tools]
#
# The site is build/docs/html/index.html. Tools that are missing are installed by cmake/bootstrap.sh, as root or through sudo;
# --check-tools installs nothing and fails without them. A warning is an error: of Doxygen for public names, and of Sphinx. Links are
# checked by docs/check_links.py, also as they stand in the Markdown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=()
case "${1:-}" in
  '') ;;
  --check-tools) tools=(--check) ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' docs/build.sh; exit 0 ;;
  *) echo "docs/build.sh: '$1' is no option; expected --check-tools" >&2; exit 2 ;;
esac
bash cmake/bootstrap.sh docs ${tools[@]+"${tools[@]}"}

doxygen=build/docs/doxygen
rm -rf build/docs
mkdir -p "$doxygen"
doxygen docs/Doxyfile
failed=0
python3 docs/check_reference.py --self-test
python3 docs/check_reference.py "$doxygen" || failed=1
python3 docs/mend_xml.py "$doxygen/xml"
sphinx-build -q -b html -W -n --keep-going -d build/docs/doctrees docs build/docs/html || failed=1
python3 docs/check_links.py --self-test >/dev/null
python3 docs/check_links.py || failed=1
if ((failed)); then
  echo "docs/build.sh: the documentation has mistakes, which are named above" >&2
  exit 1
fi
echo "docs/build.sh: build/docs/html/index.html"
