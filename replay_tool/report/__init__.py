"""The report: one HTML file that needs nothing else. `content` gathers, `page` writes, `style.css` and `lanes.js` go inside."""
