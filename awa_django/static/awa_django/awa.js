/*
 * What the queue's admin pages do better with JavaScript; all of them work without it.
 *
 *   data-awa-live         an element with an id, whose content is fetched anew every few seconds
 *   data-awa-copy="text"  a button that copies the text; "#id" copies what that element says
 *   data-awa-select-all   a checkbox that selects all rows of its form
 *   data-awa-needs-rows   a button that is of use only with rows selected
 *   data-awa-search       the field that "/" goes to
 */

const INTERVAL = 5000;
const LONGEST = 60000;
const ROWS = 'input[type="checkbox"][name="_selected_action"]';

const status = document.querySelector("[data-awa-status]");
const refresh = document.querySelector("[data-awa-refresh]");
const words = status ? status.dataset : {};

let timer = 0;
let failures = 0;
let loading = null;
let dirty = false;

const live = () => document.querySelectorAll("[data-awa-live][id]");

function say(text) {
    if (status && text !== undefined && status.textContent !== text) {
        status.textContent = text;
    }
}

/* What the user is in the middle of would be lost or would move under the pointer. */
function isBusy() {
    if (dirty || document.querySelector(`${ROWS}:checked`)) {
        return true;
    }
    for (const part of live()) {
        if (part.querySelector("details[open]:not([data-awa-open])")) {
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

function replace(page) {
    for (const part of live()) {
        const fresh = page.getElementById(part.id);
        if (fresh && fresh.innerHTML !== part.dataset.awaSeen) {
            const focused = focusIn(part);
            part.dataset.awaSeen = fresh.innerHTML;
            part.replaceChildren(...fresh.childNodes);
            enhance(part);
            if (focused) {
                part.querySelector(focused)?.focus({ preventScroll: true });
            }
        }
    }
}

async function load() {
    loading?.abort();
    const own = (loading = new AbortController());
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
        if (!isBusy()) {
            replace(page);
        }
        failures = 0;
        say(isBusy() ? words.paused : words.live);
    } catch (error) {
        if (error.name !== "AbortError") {
            failures += 1;
            say(words.failed);
        }
    } finally {
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
        const field = document.querySelector("[data-awa-search]");
        if (field) {
            event.preventDefault();
            field.focus();
            field.select();
        }
    }
});

refresh?.addEventListener("click", (event) => {
    // Without live parts, or with something open, the link does what it says: it loads the page.
    if (live().length && !isBusy()) {
        event.preventDefault();
        load().then(plan);
    }
});

enhance(document);
for (const part of live()) {
    part.dataset.awaSeen = part.innerHTML;
}
if (live().length) {
    say(words.live);
    document.addEventListener("visibilitychange", onVisibility);
    plan();
}
