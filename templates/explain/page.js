"use strict";
(function () {
  var box = document.getElementById("filter"), body = document.getElementById("story");
  if (!box || !body) { return; }
  var rows = Array.prototype.slice.call(body.rows), told = document.getElementById("filtered");
  box.parentNode.parentNode.hidden = false;
  box.addEventListener("input", function () {
    var wanted = box.value.toLowerCase(), shown = 0;
    rows.forEach(function (row) {
      var fits = row.textContent.toLowerCase().indexOf(wanted) >= 0;
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    told.textContent = wanted ? shown + " of " + rows.length : "";
  });
}());
