# Makes the repository $D know nothing but base commit $B and its past, and proves it. Read by a POSIX shell with GNU
# find and tar; envs/swe/hygiene.py puts it into the sandbox and reads what it prints:
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

past_tags() { # "id reference" of the tags in packed-refs that base's past has, and that were made before base
  now=$(git log -1 --format=%ct "$B") || return
  git for-each-ref --merged="$B" --format='%(objectname) %(refname) %(taggerdate:unix)' refs/tags |
    awk -v now="$now" '$3 == "" || $3 <= now { print $1, $2 }'
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
  objects_of | cmp -s - "$W/reachable" && git diff-index --cached --quiet "$B" --
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

  # --- the index: what it knows of files is kept, so that `git status` need not read them all -------------------------
  [ ! -f .git/index ] || cp .git/index "$NEW/index"
  git read-tree --reset "$B" 2>/dev/null || { rm -f "$NEW/index"; git read-tree "$B" || die "the index cannot be set"; }
  git update-index --no-split-index --no-untracked-cache -q --refresh || :
  rm -f "$NEW"/sharedindex.*

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

# --- repositories, bundles and packs among the files -----------------------------------------------------------------
find . -path ./.git -prune -o -name .git -print0 >"$W/nested"
find . -name .git -prune -o -type f -name HEAD -printf '%h\0' | tr '\0' '\n' | while IFS= read -r dir; do
  [ -d "$dir/objects" ] && [ -d "$dir/refs" ] || continue
  [ -z "$(git ls-tree "$B" -- "$dir/HEAD")" ] || continue
  printf '%s\0' "$dir"
done >>"$W/nested"
if [ -s "$W/nested" ]; then
  tr '\0' '\n' <"$W/nested" | head -n 20 | while IFS= read -r path; do removed "repository $path"; done
  grep -q -z -x '\.' "$W/nested" && die "the work tree's root is itself a bare repository"
  sed -z 's|^|gone: |' "$W/nested" >&3
  xargs -0 rm -rf -- <"$W/nested" || die "nested repositories cannot be removed"
fi
git ls-files -z -o -m | sed -z 's|^|./|' >"$W/files"
xargs -0 -r head -v -c 20 -- <"$W/files" 2>/dev/null |
  grep -a -B 1 -E '^(# v[0-9]+ git bundle|PACK)' | sed -n 's|^==> \(.*\) <==$|\1|p' | sort -u >"$W/bundles"
while IFS= read -r path; do
  [ -f "$path" ] || die "a git bundle or pack lies in a file of odd name: $path"
  if head -c 4 "$path" | grep -q PACK; then
    [ "$(head -c 8 "$path" | tail -c 4 | od -An -tx1 | tr -d ' ')" = 00000002 ] || continue
  fi
  [ -z "$(git ls-tree "$B" -- "$path")" ] || die "base_commit's file $path was replaced by a git bundle or pack"
  gone "$path"
  rm -f "$path"; [ ! -e "$path" ] || die "the bundle $path cannot be removed"
  removed "bundle or pack $path"
done <"$W/bundles"

git ls-tree -r -z "$B" >&3 || die "no base tree"
rm -rf "$W" "$L"
