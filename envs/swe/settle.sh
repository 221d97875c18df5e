# Settles the image's repository $D: see envs/swe/settle.py, which puts this into the sandbox. $B is a commit or HEAD, $W
# holds bug.patch and the lists hidden and removed (a path a line), $S is where hidden files go. Prints the id of the
# task's commit and then the folders of virtual environments, a line each; on failure exit code 9 and the reason.
# Hygiene comes after it and makes .git anew from that commit.

exec 3>&1 >"$W/log" 2>&1
die() { printf 'settling the repository: %s\n' "$*" >&3; tail -c 1500 "$W/log" >&3; exit 9; }
cd "$D" || die "no repository folder $D"
[ -d .git ] && [ ! -L .git ] || die "$D/.git is no plain folder"
H=$(git rev-parse --verify -q "$B^{commit}") || die "$B is no commit there"
export GIT_INDEX_FILE="$W/index"
git read-tree "$H" || die "$H has no tree"
mkdir -p .git/info
printf '* -text !eol -ident -filter !working-tree-encoding !diff !merge !whitespace\n' >.git/info/attributes

# What Python compiled, of other states of the project perhaps, and pytest's lists of the hidden tests. What is installed
# may keep its own, unless the bug makes copies of the working files telling.
spare=./.venv; [ ! -s "$W/bug.patch" ] || spare=./.git
find . \( -path ./.git -o -path "$spare" \) -prune -o \
  -type d \( -name __pycache__ -o -name .pytest_cache \) -prune -exec rm -rf {} +

twins() { # a file that the agent must not see, its name: removes copies that no commit knows (build/lib)
  find . -path ./.git -prune -o -type f -name "$2" -print | while IFS= read -r copy; do
    cmp -s "$1" "$copy" || continue
    git ls-files --error-unmatch -- "$copy" >/dev/null 2>&1 || rm -f "$copy"
  done
}

if [ -s "$W/bug.patch" ]; then
  git apply --cached --whitespace=nowarn "$W/bug.patch" || die "bug_patch does not apply to $H"
  git diff-index --cached --no-renames --name-only -z "$H" -- >"$W/broken"
  [ -s "$W/broken" ] || die "bug_patch changes nothing"
  tr '\0' '\n' <"$W/broken" | while IFS= read -r path; do
    git cat-file blob "$H:$path" >"$W/whole" 2>/dev/null && [ -s "$W/whole" ] || continue
    twins "$W/whole" "${path##*/}"
  done
  xargs -0 rm -f -- <"$W/broken"
  git diff-index --cached --no-renames --diff-filter=d --name-only -z "$H" -- |
    git checkout-index -f -q -z --stdin || die "the bug cannot be written"
fi

away() { # path, where it goes
  mkdir -p "$(dirname "$2")" && mv -- "$1" "$2" || die "$1 cannot be taken away"
}
while IFS= read -r path; do
  case $path in
  /*) to=${path##*/} ;;
  *) to=$path ;;
  esac
  [ -e "$path" ] || die "there is no $path in the image, which the row's tests need"
  away "$path" "$S/$to"
  [ ! -s "$S/$to" ] || [ ! -f "$S/$to" ] || twins "$S/$to" "${to##*/}"
  # Where it goes back there may be a link to it (or an older copy).
  [ "$to" = "$path" ] || rm -rf -- "./$to"
  git rm -f -r -q --cached --ignore-unmatch -- "$to" || die "$to cannot be taken out of the commit"
done <"$W/hidden"
while IFS= read -r path; do
  [ -e "$path" ] || [ -L "$path" ] || continue
  rm -rf -- "$path" || die "$path cannot be removed"
  case $path in /*) ;; *) git rm -f -r -q --cached --ignore-unmatch -- "$path" ;; esac
done <"$W/removed"
[ -z "$S" ] || chmod 700 "$S"

tree=$(git write-tree) || die "no tree can be written"
if [ "$tree" = "$(git rev-parse "$H^{tree}")" ]; then
  echo "$H" >&3
else
  # One commit without a past: the one before it would be the fix. Dated like the image's, so that it is the same always.
  date="$(git log -1 --format=%ct "$H") +0000"
  export GIT_AUTHOR_NAME=repository GIT_AUTHOR_EMAIL=repository@example.invalid GIT_AUTHOR_DATE="$date"
  export GIT_COMMITTER_NAME=repository GIT_COMMITTER_EMAIL=repository@example.invalid GIT_COMMITTER_DATE="$date"
  echo "Initial commit" | git commit-tree "$tree" >&3 || die "no commit can be made"
fi
find . -mindepth 2 -maxdepth 2 -name pyvenv.cfg -printf '%P\n' | sed 's|/pyvenv.cfg$||' >&3
cd / && rm -rf "$W"
