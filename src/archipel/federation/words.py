# SPDX-License-Identifier: Apache-2.0
"""Words for bytes: a fingerprint that can be read over the telephone."""

from __future__ import annotations

_TEXT = """
    acorn actor album alder almond amber anchor angel ankle anvil apple apron arrow aspen atlas
    attic autumn badge bagel baker bamboo banjo barley barn basil basket beacon beaver bell
    berry birch bishop bison blanket blossom boat bonfire bottle boulder bracelet bramble bread
    breeze brick bridge broom bucket buffalo butter button cabin cactus camel candle canoe
    canyon carpet carrot castle cattle cedar cello chalk cherry chestnut chimney cider cinema
    circle clay cliff clover coal cobra coffee comet compass copper coral cotton cradle crane
    crayon cricket crocus crystal cupboard curtain cypress daisy dancer desert diamond dinner
    dolphin donkey dragon drum eagle earth easel echo elbow elder elephant ember emerald engine
    envelope falcon farmer feather fern ferry fiddle field finger flame flute forest fountain
    fox galaxy garden garlic ginger giraffe glacier glove goat goblet granite grape grove guitar
    hammer harbour harp hazel heather hedge helmet heron hickory hill honey horizon hotel
    iceberg igloo insect iris island ivory ivy jacket jaguar jasmine jelly jewel jungle juniper
    kayak kettle king kitchen kite koala ladder lagoon lake lamp lantern larch lemon lettuce
    library lily linen lion lizard lobster lotus magnet mango maple marble meadow melon mirror
    monkey moon mountain mustard napkin needle nest nutmeg oak oasis ocean olive onion orange
    orchard otter oven owl oyster paddle palace panther paper parrot peach pebble pelican pencil
    pepper piano pigeon pillow pine planet plum pocket pond poplar potato prairie pumpkin puzzle
    quail quartz rabbit radish raven ribbon river robin rocket saddle salmon sandal scarf
    sparrow spinach teapot thistle tiger tulip turtle velvet violin walnut zebra
"""
WORDS = _TEXT.split()
