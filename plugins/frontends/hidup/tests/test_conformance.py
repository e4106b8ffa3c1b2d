"""The promises that every frontend makes."""

from __future__ import annotations

from topoplan.testing import parametrize_with_checks
from topoplan_frontend_hidup import topoplan_frontends

BERT_SGMOE, BERT_SWITCH, VIT_SGMOE, VIT_SWITCH = topoplan_frontends()


@parametrize_with_checks(BERT_SGMOE)
def test_conformance_of_bert_sgmoe(check):
    check()


@parametrize_with_checks(BERT_SWITCH)
def test_conformance_of_bert_switch(check):
    check()


@parametrize_with_checks(VIT_SGMOE)
def test_conformance_of_vit_sgmoe(check):
    check()


@parametrize_with_checks(VIT_SWITCH)
def test_conformance_of_vit_switch(check):
    check()
