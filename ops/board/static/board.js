// Live refresh, and forms that count at once. Without it every page works: it is as old as its loading, and has a button.
(function () {
  "use strict";
  var every = 4000;

  function note(text, error) {
    document.querySelectorAll(".dm-live").forEach(function (element) {
      element.hidden = false;
      element.querySelector(".dm-live-text").textContent = text;
      element.querySelector(".status-dot").className = "status-dot status-dot-" + (error ? "error" : "live");
    });
  }

  function swap(old, next) {
    var open = {}, focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    old.querySelectorAll("details[id]").forEach(function (d) { open[d.id] = d.open; });
    next.querySelectorAll("details[id]").forEach(function (d) { if (d.id in open) { d.open = open[d.id]; } });
    old.innerHTML = next.innerHTML;
    if (focused && document.getElementById(focused)) { document.getElementById(focused).focus(); }
  }

  function refresh() {
    var board = document.getElementById("board");
    if (document.hidden || !board.querySelector(".dm-live")) { return; }
    fetch(window.location.href, {credentials: "same-origin"}).then(function (answer) {
      if (!answer.ok) { throw new Error(answer.status); }
      return answer.text();
    }).then(function (text) {
      var fresh = new DOMParser().parseFromString(text, "text/html").getElementById("board");
      if (!fresh) { return; }
      var parts = board.querySelectorAll("[data-live]");     // a form that is being filled in is left alone
      (parts.length ? Array.from(parts) : [board]).forEach(function (part) {
        var next = fresh.id === part.id ? fresh : fresh.querySelector("#" + part.id);
        if (next) { swap(part, next); }
      });
      note("Live · " + new Date().toLocaleTimeString(), false);
    }).catch(function () { note("Not reached; trying again", true); });
  }

  document.querySelectorAll("form[data-auto]").forEach(function (form) {
    form.addEventListener("change", function () { form.submit(); });
  });
  note("Live", false);
  window.setInterval(refresh, every);
}());
