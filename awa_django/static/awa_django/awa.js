/*
 * What the queue's admin pages do better with JavaScript; all of them work without it.
 *
 *   data-awa-live         an element with an id, whose content is fetched anew every few seconds
 *   data-awa-along        one that is kept up to date beside them, but is no reason to fetch anything
 *   data-awa-copy="text"  a button that copies the text; "#id" copies what that element says
 *   data-awa-select-all   a checkbox that selects all rows of its form
 *   data-awa-needs-rows   a button that is of use only with rows selected
 *   data-awa-search       the field that "/" goes to; of several, the last one
 */

const INTERVAL = 5000;
const LONGEST = 60000;
const PATIENCE = 30000;
const ROWS = 'input[type="checkbox"][name="_selected_action"]';

const status = document.querySelector("[data-awa-status]");
const refresh = document.querySelector("[data-awa-refresh]");
const words = status ? status.dataset : {};

let timer = 0;
let failures = 0;
let loading = null;
let dirty = false;
let loadedAt = new Date();

/* What each part said as it came, before anything was made of it here. */
const seen = new WeakMap();

const live = () => document.querySelectorAll("[data-awa-live][id]");

function say(text, stale = false) {
    if (status && text !== undefined && status.textContent !== text) {
        status.textContent = text;
    }
    status?.classList.toggle("is-error", stale);
}

/* What a page shows stays, and says how old it is. */
function sayStale() {
    const at = loadedAt.toLocaleTimeString(document.documentElement.lang || undefined, { timeStyle: "medium" });
    say(words.failed?.replace("#", at), true);
}

/* What the user is in the middle of would be lost or would move under the pointer. */
function isBusy() {
    if (dirty || document.querySelector(`${ROWS}:checked`)) {
        return true;
    }
    for (const part of live()) {
        if (part.querySelector("details[open]:not([data-awa-open]), details[data-awa-open]:not([open])")) {
            return true;
        }
        const focused = document.activeElement;
        if (part.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea")) {
            return true;
        }
        const marked = document.getSelection();
        if (marked && !marked.isCollapsed && part.contains(marked.anchorNode)) {
            return true;
        }
    }
    return false;
}

/* Where the focus is, in words that also find it in the new content. */
function focusIn(part) {
    const focused = document.activeElement;
    if (!part.contains(focused)) {
        return null;
    }
    for (const name of ["id", "href", "formaction", "data-awa-copy", "value"]) {
        const value = focused.getAttribute(name);
        if (value) {
            return `${focused.localName}[${name}="${CSS.escape(value)}"]`;
        }
    }
    return null;
}

/* What a part says. The token of its forms is another in each answer, and means the same. */
function content(part) {
    return part.innerHTML.replace(/(name="csrfmiddlewaretoken" value=")[^"]*/g, "$1");
}

/* Parts are replaced only if they have changed: who listens to them is told of nothing else. */
function replace(page) {
    for (const part of document.querySelectorAll("[data-awa-live][id], [data-awa-along][id]")) {
        const fresh = page.getElementById(part.id);
        const said = fresh && content(fresh);
        if (fresh && said !== seen.get(part)) {
            const focused = focusIn(part);
            const scrolled = [...part.querySelectorAll("pre[id]")].map((item) => [item.id, item.scrollTop]);
            seen.set(part, said);
            part.replaceChildren(...fresh.childNodes);
            enhance(part);
            if (focused) {
                part.querySelector(focused)?.focus({ preventScroll: true });
            }
            for (const [id, top] of scrolled) {
                const item = top && document.getElementById(id);
                if (item) {
                    item.scrollTop = top;
                }
            }
        }
    }
}

async function load() {
    loading?.abort();
    const own = (loading = new AbortController());
    const waiting = window.setTimeout(() => own.abort(new Error("too slow")), PATIENCE);
    try {
        const answer = await fetch(window.location.href, {
            headers: { "X-Awa-Live": "1" },
            credentials: "same-origin",
            cache: "no-cache",
            signal: own.signal,
        });
        // A redirect leads to the log-in page, or away from what is gone: only a real visit can follow.
        if (!answer.ok || answer.redirected) {
            throw new Error(String(answer.status));
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        failures = 0;
        if (isBusy()) {
            say(words.paused);
        } else {
            replace(page);
            loadedAt = new Date();
            say(words.live);
        }
    } catch (error) {
        if (error.name !== "AbortError") {
            failures += 1;
            sayStale();
        }
    } finally {
        window.clearTimeout(waiting);
        if (loading === own) {
            loading = null;
        }
    }
}

function plan() {
    window.clearTimeout(timer);
    if (!document.hidden && live().length) {
        timer = window.setTimeout(tick, Math.min(INTERVAL * 2 ** failures, LONGEST));
    }
}

async function tick() {
    if (isBusy()) {
        say(words.paused);
    } else {
        await load();
    }
    plan();
}

function onVisibility() {
    if (document.hidden) {
        window.clearTimeout(timer);
        loading?.abort();
    } else {
        tick();
    }
}

/* Copying */

async function copy(button) {
    const wanted = button.dataset.awaCopy;
    const source = wanted.startsWith("#") ? document.getElementById(wanted.slice(1)) : null;
    const before = button.textContent;
    try {
        await navigator.clipboard.writeText(source ? source.textContent : wanted);
        button.textContent = words.copied || before;
    } catch {
        button.textContent = words.notCopied || before;
    }
    window.setTimeout(() => (button.textContent = before), 1500);
}

/* Selecting */

function onSelection(form) {
    const boxes = [...form.querySelectorAll(ROWS)];
    const chosen = boxes.filter((box) => box.checked).length;
    const all = form.querySelector("[data-awa-select-all]");
    if (all) {
        all.checked = chosen > 0 && chosen === boxes.length;
        all.indeterminate = chosen > 0 && chosen < boxes.length;
    }
    const count = form.querySelector("[data-awa-count]");
    if (count) {
        count.textContent = chosen ? count.dataset.some.replace("#", chosen) : count.dataset.none;
    }
    for (const button of form.querySelectorAll("[data-awa-needs-rows]")) {
        button.disabled = chosen === 0;
    }
    say(isBusy() ? words.paused : words.live);
}

/* What only works with JavaScript is hidden until it does. */
function enhance(root) {
    for (const item of root.querySelectorAll("[data-awa-copy][hidden], [data-awa-select-all][hidden]")) {
        item.hidden = false;
    }
    const forms = new Set([...root.querySelectorAll(ROWS)].map((box) => box.form));
    forms.forEach((form) => form && onSelection(form));
}

document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-awa-copy]");
    if (button) {
        event.preventDefault();
        copy(button);
    }
    // A click elsewhere closes a menu, as menus do.
    for (const menu of document.querySelectorAll("details.awa-menu[open]")) {
        if (!menu.contains(event.target)) {
            menu.open = false;
        }
    }
});

document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-awa-select-all]")) {
        box.form.querySelectorAll(ROWS).forEach((row) => (row.checked = box.checked));
        onSelection(box.form);
    } else if (box.matches(ROWS)) {
        onSelection(box.form);
    }
});

document.addEventListener("input", (event) => {
    if (event.target.form && !event.target.matches(`${ROWS}, [data-awa-select-all]`)) {
        dirty = true;
        say(words.paused);
    }
});

document.addEventListener("reset", () => (dirty = false));

document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
        document.querySelectorAll("details.awa-menu[open]").forEach((menu) => {
            menu.open = false;
            menu.querySelector("summary").focus();
        });
    }
    const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
        const field = [...document.querySelectorAll("[data-awa-search]")].at(-1);
        if (field) {
            event.preventDefault();
            field.focus();
            field.select();
        }
    }
});

refresh?.addEventListener("click", (event) => {
    // Without live parts, with something open, or where fetching fails, the link does what it says: it loads the page,
    // and with it the form to log in again.
    if (live().length && !isBusy() && !failures) {
        event.preventDefault();
        load().then(plan);
    }
});

for (const part of document.querySelectorAll("[data-awa-live][id], [data-awa-along][id]")) {
    seen.set(part, content(part));
}
enhance(document);
if (live().length) {
    say(words.live);
    document.addEventListener("visibilitychange", onVisibility);
    plan();
}
