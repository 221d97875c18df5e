# Makes the repository $D know nothing but base commit $B and its past, and proves it; copies of it are looked for below
# $R (its own parent folder, where that is not given). Read by a POSIX shell with GNU find, grep and tar; envs/swe/hygiene.py puts it into the sandbox and reads what it prints:
#   "clean\0"             the folder was as this script makes it, nothing was changed
#   "removed: <what>\0"   what was found and taken out
#   "gone: <path>\0"      what was removed outside .git
#   "<git ls-tree -r -z>" base's tree, when everything held
# and on failure exit code 9 with "hygiene: <why>", everything that is wrong, and the last lines of git's own words.
#
# .git is not cleaned but made anew: objects that base reaches, one branch, the tags of its past, a handful of settings.
# Git never runs with the old folder's configuration, references, grafts, replacements or indexes: only its objects are
# lent to the new one while it is filled. What the old folder held in any other place therefore cannot survive.

W=${TMPDIR:-/tmp}/.hygiene L=${TMPDIR:-/tmp}/.hygiene.log
exec 3>&1 >"$L" 2>&1
die() { printf 'hygiene: %s\n' "$*" >&3; tail -c 2000 "$L" >&3; exit 9; }
removed() { printf 'removed: %s\0' "$*" >&3; }
gone() { for path in "$@"; do printf 'gone: %s\0' "$path" >&3; done; }
rm -rf "$W"; mkdir "$W" || die "cannot make $W"
cd "$D" || die "no repository folder $D"

# --- what cannot be handled is refused -------------------------------------------------------------------------------
for name in GIT_DIR GIT_WORK_TREE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR GIT_INDEX_FILE GIT_NAMESPACE; do
  eval "[ -z \"\${$name:-}\" ]" || die "the image sets $name, which would lead git elsewhere: unset it in the image"
done
unset GIT_GRAFT_FILE GIT_SHALLOW_FILE GIT_REPLACE_REF_BASE GIT_ATTR_SOURCE GIT_TRACE GIT_TEMPLATE_DIR
[ -d .git ] && [ ! -L .git ] || die "$D/.git is no plain folder (worktrees and submodules as tasks are not supported)"
[ ! -e .git/commondir ] || die "$D/.git is a linked worktree's (.git/commondir): clone the repository into the image"
OLD=$PWD/.git/objects NEW=$PWD/.git.new
[ -d "$OLD" ] || die "there is no $D/.git/objects"
[ ! -e "$NEW" ] || die "$D/.git.new is in the way"

KEPT='user\.(name|email)|core\.(filemode|symlinks|ignorecase|autocrlf|eol|safecrlf|precomposeunicode)'
MADE='core\.(repositoryformatversion|bare|logallrefupdates|trustctime|checkstat)|extensions\.objectformat'
objects_of() { git cat-file --batch-all-objects --unordered --batch-check='%(objectname)' | sort -u; }

past_tags() { # "id reference" of the tags in packed-refs that base's past has, and that were made before base. A tag
  # object that does not say when it was made, or that names another tag, proves nothing about its words.
  now=$(git log -1 --format=%ct "$B") || return
  git for-each-ref --merged="$B" --format='%(objectname) %(refname) %(objecttype) %(type) %(taggerdate:unix)' refs/tags |
    awk -v now="$now" '$3 == "commit" || ($3 == "tag" && $4 == "commit" && $5 != "" && $5 <= now) { print $1, $2 }'
}

# --- a folder that this script made, and nobody touched since --------------------------------------------------------
clean() {
  [ -z "$(find .git -mindepth 1 \( -type d \( -path .git/objects -o -path .git/objects/pack -o -path .git/objects/info \
    -o -path .git/refs -o -path .git/refs/heads -o -path .git/refs/tags -o -path .git/info \) \
    -o -type f \( -path .git/HEAD -o -path .git/config -o -path .git/index -o -path .git/packed-refs \
    -o -path .git/shallow -o -path .git/info/exclude -o -path .git/refs/heads/main \
    -o -regex '\.git/objects/pack/pack-[0-9a-f]*\.\(pack\|idx\|rev\)' \) \) -o -print | head -n 1)" ] &&
    [ "$(cat .git/HEAD)" = "ref: refs/heads/main" ] && [ "$(cat .git/refs/heads/main)" = "$B" ] || return 1
  [ -z "$(git config --file .git/config --no-includes --name-only --list | grep -v -x -E "$KEPT|$MADE")" ] &&
    [ -z "${GIT_ALTERNATE_OBJECT_DIRECTORIES:-}" ] && ! grep -q -v ' refs/tags/' .git/packed-refs || return 1
  past_tags | cmp -s - .git/packed-refs || return 1
  { echo "$B"; cut -d' ' -f1 .git/packed-refs; } >"$W/tips"
  git rev-list --objects --no-object-names --stdin <"$W/tips" >"$W/list" || return 1
  sort -u "$W/list" >"$W/reachable"
  objects_of | cmp -s - "$W/reachable" && git diff-index --cached --quiet "$B" -- &&
    [ -z "$(git ls-files -v | grep -v '^H' | head -n 1)" ]
}

remake() {
  # --- places that $OLD borrows from, or that were checked out beside it ----------------------------------------------
  lenders() { # objects folder, depth: all that it borrows from, as deep as git looks
    [ -f "$1/info/alternates" ] && [ "$2" -lt 6 ] || return 0
    while IFS= read -r place; do
      case $place in '' | '#'*) continue ;; /*) ;; *) place=$1/$place ;; esac
      printf '%s\n' "$place"
      (lenders "$place" $(($2 + 1)))
    done <"$1/info/alternates"
  }
  {
    [ ! -L .git/objects ] || readlink -f .git/objects
    lenders "$OLD" 1
    printf '%s' "${GIT_ALTERNATE_OBJECT_DIRECTORIES:-}" | tr : '\n'
  } | while IFS= read -r place || [ -n "$place" ]; do readlink -m "$place"; done |
    grep -v -x -F "$PWD/.git/objects" | sort -u >"$W/lenders"
  find .git/objects/ -type l -exec readlink -f {} \; >"$W/links"
  find .git/worktrees -mindepth 2 -maxdepth 2 -name gitdir -exec cat {} \; 2>/dev/null >"$W/worktrees"

  # --- the new folder ------------------------------------------------------------------------------------------------
  mkdir -p "$NEW/objects/pack" "$NEW/objects/info" "$NEW/refs/heads" "$NEW/refs/tags" "$NEW/info" || die "cannot write"
  echo "ref: refs/heads/main" >"$NEW/HEAD"
  {
    if [ ${#B} = 64 ]; then printf '[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n'
    else printf '[core]\n\trepositoryformatversion = 0\n'; fi
    # size and time of a file tell whether it changed: copies of the image have other inodes
    printf '[core]\n\tbare = false\n\tlogallrefupdates = true\n\ttrustctime = false\n\tcheckStat = minimal\n'
  } >"$NEW/config"
  git config --file .git/config --no-includes --get-regexp "^($KEPT)\$" >"$W/config"
  while IFS=' ' read -r key value; do
    git config --file "$NEW/config" "$key" "$value" || die "setting $key cannot be kept"
  done <"$W/config"
  if [ -s .git/info/exclude ]; then tail -c 65536 .git/info/exclude >"$NEW/info/exclude"; fi
  export GIT_DIR="$NEW" GIT_WORK_TREE="$PWD"
  export GIT_ALTERNATE_OBJECT_DIRECTORIES="$OLD$(sed 's/^/:/' "$W/lenders" | tr -d '\n')"
  git cat-file -e "$B^{commit}" || die "base_commit is not in the repository"
  [ ! -s .git/shallow ] || cp .git/shallow "$NEW/shallow"

  # Tags of the past stay: versions are read off them. Not one that was made after base, whatever it points to.
  {
    find .git/refs/tags -type f -exec grep -H -x -E '[0-9a-f]{40,64}' {} + 2>/dev/null |
      sed -n 's|^.git/\(.*\):\(.*\)|\2 \1|p'
    grep -E '^[0-9a-f]{40,64} refs/tags/' .git/packed-refs 2>/dev/null
  } | grep -E ' refs/tags/[A-Za-z0-9_+@-][A-Za-z0-9._+@/-]*$' | grep -v -E '\.\.|//|/\.|\./|\.lock(/|$)|@\{|/$|\.$' |
    awk '!seen[$2]++' >"$W/tags"
  cut -d' ' -f1 "$W/tags" | git cat-file --batch-check='%(objecttype)' | paste -d' ' - "$W/tags" |
    sed -n 's/^\(commit\|tag\) //p' | LC_ALL=C sort -k2 >"$NEW/packed-refs"
  past_tags >"$W/past" || : >"$W/past"
  cp "$W/past" "$NEW/packed-refs"
  echo "$B" >"$NEW/refs/heads/main"

  # --- its objects ---------------------------------------------------------------------------------------------------
  { echo "$B"; cut -d' ' -f1 "$NEW/packed-refs"; } |
    git rev-list --objects --stdin >"$W/list" || die "history cannot be walked (a partial or damaged clone?)"
  cut -d' ' -f1 "$W/list" | sort -u >"$W/reachable"
  if [ -s "$NEW/shallow" ]; then
    sort -u "$NEW/shallow" | comm -12 - "$W/reachable" >"$W/shallow"
    if [ -s "$W/shallow" ]; then cp "$W/shallow" "$NEW/shallow"; else rm "$NEW/shallow"; fi
  fi
  # No search for better deltas: those that are there are taken over.
  git pack-objects -q --window=0 --threads=1 --delta-base-offset "$NEW/objects/pack/pack" <"$W/list" ||
    die "objects cannot be packed (a partial or damaged clone?)"

  objects_of >"$W/lent"
  unset GIT_ALTERNATE_OBJECT_DIRECTORIES

  # --- the proof: all objects of the new folder, alone, against what base reaches -------------------------------------
  objects_of >"$W/all"
  [ -s "$W/all" ] || die "no objects"
  cmp -s "$W/reachable" "$W/all" ||
    die "the new repository does not hold what base_commit reaches: $(comm -3 "$W/reachable" "$W/all" | head -n 5)"

  # --- the index: new, since the old one may say of files that they are not to be looked at ----------------------------
  git read-tree "$B" || die "the index cannot be set"
  git update-index -q --refresh || :

  # --- what was in the old one ---------------------------------------------------------------------------------------
  tell() { # what a folder or file holds is worth a line of the report
    for path in "$@"; do
      [ ! -e "$path" ] && [ ! -L "$path" ] || removed "$path"
    done
  }
  tell .git/logs .git/worktrees .git/modules .git/*_HEAD .git/*_EDITMSG .git/*_MSG .git/AUTO_MERGE .git/BISECT_* \
    .git/rebase-* .git/sequencer .git/rr-cache .git/lost-found .git/reftable .git/lfs .git/annex .git/svn .git/remotes \
    .git/branches .git/config.worktree .git/sharedindex.* .git/info/grafts .git/info/refs .git/info/attributes \
    .git/info/sparse-checkout .git/objects/info/alternates .git/objects/info/http-alternates \
    .git/objects/info/commit-graph* .git/objects/pack/multi-pack-index* .git/objects/pack/*.bitmap
  [ -z "$(find .git/hooks -type f ! -name '*.sample' 2>/dev/null | head -n 1)" ] || removed ".git/hooks"
  {
    find .git/refs -type f -printf 'refs/%P\n'
    sed -n 's|^[0-9a-f]* refs/|refs/|p' .git/packed-refs
  } 2>/dev/null | grep -v -x -E 'refs/heads/(main|master)' | sort -u >"$W/refs"
  cut -d' ' -f2 "$NEW/packed-refs" | sort | comm -23 "$W/refs" - | head -n 20 >"$W/dropped"
  while IFS= read -r name; do removed "$name"; done <"$W/dropped"
  git config --file .git/config --no-includes --name-only --list 2>/dev/null |
    grep -v -x -E "$KEPT|$MADE" |
    sort -u | head -n 20 | while IFS= read -r name; do removed "setting $name"; done
  comm -23 "$W/lent" "$W/all" >"$W/extra"
  [ ! -s "$W/extra" ] || removed "$(wc -l <"$W/extra") objects that base_commit does not reach"

  unset GIT_DIR GIT_WORK_TREE
  rm -rf .git && mv "$NEW" .git || die ".git cannot be replaced"

  # --- stores elsewhere ----------------------------------------------------------------------------------------------
  while IFS= read -r place; do
    [ -d "$place" ] || continue
    folder=${place%/objects}
    if [ "$folder" = "$place" ]; then die "objects are borrowed from $place, not a git folder's"; fi
    if [ ! -f "$folder/HEAD" ] || [ ! -d "$folder/refs" ]; then folder=$place; fi
    case $PWD/ in "$folder"/*) die "objects are borrowed from $folder, which $PWD lies in" ;; esac
    gone "$folder"
    rm -rf "$folder"; [ ! -e "$folder" ] || die "$folder, which lends objects, cannot be removed"
    removed "objects borrowed from $folder"
  done <"$W/lenders"
  while IFS= read -r place; do
    case $place in *.pack | *.idx | */objects/pack | */objects/[0-9a-f][0-9a-f] | */objects/[0-9a-f][0-9a-f]/*) ;;
    *) die ".git/objects has a link to $place" ;;
    esac
    gone "$place"
    rm -rf "$place"; [ ! -e "$place" ] || die "objects in $place cannot be removed"
    removed "objects linked from $place"
  done <"$W/links"
  while IFS= read -r place; do
    folder=${place%/.git}
    if [ "$folder" = "$place" ] || [ ! -f "$place" ]; then continue; fi
    grep -q '^gitdir: .*/worktrees/' "$place" || continue
    gone "$folder"
    [ "$folder" = "$PWD" ] || rm -rf "$folder"
    [ ! -e "$folder" ] || die "the linked worktree $folder cannot be removed"
    removed "linked worktree $folder"
  done <"$W/worktrees"
}

if clean; then printf 'clean\0' >&3; else remake; fi

# --- repositories, objects, bundles and packs among the files ---------------------------------------------------------
# Names may hold anything: lists end every name with a NUL. Commands see one as "$path".
each() {
  xargs -0 -r sh -c 'in_base() { [ -n "$(git --literal-pathspecs ls-tree "$B" -- "$1")" ]; }
    for path; do '"$2"'; done' sh <"$1"
}
export W B PROBE="$W/probe"
MARKS='-name HEAD -o -name objects -o -name refs -o -name packed-refs -o -name commondir'
# Two of these marks, of whatever type (links, split folders), make a folder git's, unless base_commit has them.
is_git='
  [ -e "$path/objects" ] || [ -e "$path/commondir" ] || { [ -e "$path/HEAD" ] && [ -e "$path/refs" ]; } || continue'
find . -path ./.git -prune -o -name .git -print0 >"$W/nested"
find . -name .git -prune -o \( $MARKS \) -printf '%h\0' | sort -z | uniq -z -d >"$W/marked"
each "$W/marked" "$is_git"'
  for mark in HEAD objects refs packed-refs commondir; do ! in_base "$path/$mark" || continue 2; done
  printf "%s\0" "$path"' >>"$W/nested" || die "folders cannot be looked at"
if [ -s "$W/nested" ]; then
  tr '\0' '\n' <"$W/nested" | head -n 20 | while IFS= read -r path; do removed "repository $path"; done
  grep -q -z -x '\.' "$W/nested" && die "the work tree's root is itself a bare repository"
  sed -z 's|^|gone: |' "$W/nested" >&3
  xargs -0 rm -rf -- <"$W/nested" || die "nested repositories cannot be removed"
fi

# Loose objects, packs and bundles: by what they are, in whatever folder.
hex='[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]'
find . -path ./.git -prune -o -type f -path "*/[0-9a-f][0-9a-f]/$hex$hex$hex$hex$hex$hex[0-9a-f][0-9a-f]*" -print0 \
  >"$W/loose"
git ls-files -z -o -m | sed -z 's|^|./|' | xargs -0 -r grep -l -a -Z -m 1 -E '^(# v[0-9]+ git bundle|PACK)' -- \
  >"$W/packs"
cat "$W/loose" "$W/packs" >"$W/suspects"
each "$W/suspects" '
  case $(head -c 8 "$path" | od -An -tx1 | tr -d " \n") in
  5041434b0000000[23]) kind="bundle or pack" ;;
  232076*) kind="bundle or pack"; head -c 16 "$path" | grep -q "^# v[0-9]* git bund" || continue ;;
  78*) kind=object; grep -q -z -x -F -e "$path" "$W/loose" || continue ;;
  *) continue ;;
  esac
  if in_base "$path"; then
    git --literal-pathspecs diff-files --quiet -- "$path" || printf "%s " "$path" >>"$W/replaced"
    continue
  fi
  printf "gone: %s\0removed: %s %s\0" "$path" "$kind" "$path" >&3
  rm -f -- "$path"; [ ! -e "$path" ] || printf "%s " "$path" >>"$W/stays"' || die "files cannot be looked at"
[ ! -e "$W/replaced" ] || die "base_commit's file was replaced by a git bundle or pack: $(cat "$W/replaced")"
[ ! -e "$W/stays" ] || die "git's objects cannot be removed: $(cat "$W/stays")"

# --- copies of the repository elsewhere: a folder of git's that knows base_commit, or a good part of its files ----------
here=$(pwd -P)
R=$(cd "${R:-..}" && pwd -P) || die "no folder ${R:-..}"
find "$R" -xdev \( -path "$here" -o -path "$W" -o -path /proc -o -path /sys -o -path /dev \) -prune -o \
  \( $MARKS \) -printf '%h\0' | sort -z | uniq -z -d >"$W/elsewhere"
if [ -s "$W/elsewhere" ]; then
  format=sha1; [ ${#B} = 40 ] || format=sha256
  git init -q --bare --object-format=$format "$PROBE" || die "cannot make $PROBE"
  { echo "$B"; git ls-tree -r "$B" | cut -f1 | cut -d' ' -f3; } | sort -u >"$W/ours"
  export FIFTH=$((1 + $(wc -l <"$W/ours") / 5))
  each "$W/elsewhere" "$is_git"'
    git --git-dir="$path" cat-file -e "$B^{commit}" ||
      [ "$(GIT_ALTERNATE_OBJECT_DIRECTORIES="$path/objects" git --git-dir="$PROBE" cat-file --batch-check <"$W/ours" |
        grep -c -v " missing$")" -ge "$FIFTH" ] || continue
    printf "%s " "$path" >>"$W/copies"' || die "folders of $R cannot be looked at"
fi
[ ! -e "$W/copies" ] || die "another copy of the repository is in the sandbox, take it out of the image: $(cat "$W/copies")"

git ls-tree -r -z "$B" >&3 || die "no base tree"
rm -rf "$W" "$L"
