"""The report: one HTML file that needs nothing else.

`content` gathers, `page` fills `page.html`, and `style.css` and `lanes.js` go inside.
"""
