// Live refresh, and forms that count at once. Without it every page works: it is as old as its loading, and has a button.
(function () {
  "use strict";
  var every = 4000;

  function busy(board) {
    return document.hidden || board.dataset.still !== undefined || board.contains(document.activeElement) &&
      /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  }

  function note(text, error) {
    document.querySelectorAll(".dm-live").forEach(function (element) {
      element.hidden = false;
      element.querySelector(".dm-live-text").textContent = text;
      element.querySelector(".status-dot").className = "status-dot status-dot-" + (error ? "error" : "live");
    });
  }

  function refresh() {
    var board = document.getElementById("board");
    if (busy(board) || !board.querySelector(".dm-live")) { return; }
    fetch(window.location.href, {credentials: "same-origin"}).then(function (answer) {
      if (!answer.ok) { throw new Error(answer.status); }
      return answer.text();
    }).then(function (text) {
      var fresh = new DOMParser().parseFromString(text, "text/html").getElementById("board"), open = {};
      if (!fresh || busy(board)) { return; }
      board.querySelectorAll("details[id]").forEach(function (d) { open[d.id] = d.open; });
      fresh.querySelectorAll("details[id]").forEach(function (d) { if (d.id in open) { d.open = open[d.id]; } });
      var focused = document.activeElement && board.contains(document.activeElement) ? document.activeElement.id : "";
      board.innerHTML = fresh.innerHTML;
      if (focused && document.getElementById(focused)) { document.getElementById(focused).focus(); }
      note("Live · " + new Date().toLocaleTimeString(), false);
    }).catch(function () { note("Not reached; trying again", true); });
  }

  document.querySelectorAll("form[data-auto]").forEach(function (form) {
    form.addEventListener("change", function () { form.submit(); });
  });
  note("Live", false);
  window.setInterval(refresh, every);
}());
